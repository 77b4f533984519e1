CREATE DATABASE dagster OWNER recorder;
