# Installs the service from a wheelhouse and starts it, in a network namespace with a loopback alone.
# Usage: offline_install.sh CHECKOUT PYTHON WHEELHOUSE FOLDER; the last line of its output is the answer of /readyz.
set -e
test "$(ip -o link | wc -l)" = 1
ip link set lo up
cd "$1"
"$2" -m venv "$4/venv"
"$4/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --require-hashes \
	--find-links "$3" -r requirements/service.txt
"$4/venv/bin/python" -m recorder.cli up --data "$4/data" >&2 &
for _ in $(seq 480); do
	"$4/venv/bin/python" -c "
import urllib.request
print(urllib.request.urlopen('http://127.0.0.1:8700/readyz').read().decode())" 2>/dev/null && exit
	sleep 0.5
done
exit 1
