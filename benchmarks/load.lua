-- Load of event batches for wrk: `wrk -s load.lua URL -- FOLDER`. FOLDER holds what load.py wrote there.
local ready = {}
local heads = nil
local sent = 0
local prefix = ""

local function slurp(path)
   local file = assert(io.open(path, "rb"))
   local text = file:read("*a")
   file:close()
   return text
end

function init(args)
   local folder = args[1]
   prefix = args[2] or ""
   local bodies = {}
   for n = 0, tonumber(args[3]) - 1 do
      bodies[n] = slurp(folder .. "/body_" .. n .. ".json")
   end
   if prefix ~= "" then heads = {} end
   local count = 0
   for line in io.lines(folder .. "/targets.txt") do
      local path, key = line:match("(%S+) (%S+)")
      -- Every session meets two bodies; wrk would otherwise hold sessions times bodies in memory.
      for variant = 0, 1 do
         local body = bodies[(count + variant * 17) % (#bodies + 1)]
         local headers = { ["Authorization"] = "Bearer " .. key, ["Content-Type"] = "application/json" }
         if heads then
            headers["Idempotency-Key"] = "@"
            local text = wrk.format("POST", path, headers, body)
            local at = text:find("Idempotency-Key: @", 1, true) + #"Idempotency-Key: "
            heads[#heads + 1] = { text:sub(1, at - 1), text:sub(at + 1) }
         else
            ready[#ready + 1] = wrk.format("POST", path, headers, body)
         end
      end
      count = count + 1
   end
end

function request()
   sent = sent + 1
   if heads then
      local parts = heads[sent % #heads + 1]
      return parts[1] .. prefix .. sent .. parts[2]
   end
   return ready[sent % #ready + 1]
end

function done(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      '\n{"requests":%d,"us":%d,"refused":%d,"broken":%d,"p50_us":%d,"p99_us":%d}\n',
      summary.requests, summary.duration, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout,
      latency:percentile(50), latency:percentile(99)))
end
