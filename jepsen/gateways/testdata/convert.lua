-- For wrk: asks for POST /convert as callers behind one proxy do, and tells at the end what came of it, as one line of
-- JSON. Arguments: how many callers there are, and the mean pause of a connection between two requests, in milliseconds.
--
-- Header Asked has the caller and when the request was sent, by CLOCK_MONOTONIC in nanoseconds: wrk calls request just
-- before it writes.

local ffi = require("ffi")
ffi.cdef [[
  typedef struct { long sec; long nsec; } asked_time;
  int clock_gettime(int clock, asked_time *t);
]]
local now = ffi.new("asked_time")
local CLOCK_MONOTONIC = 1

local threads = {} -- of the environment of setup and done

function setup(thread)
  table.insert(threads, thread)
  thread:set("seed", #threads)
end

function init(args)
  math.randomseed(seed)
  callers, pause = tonumber(args[1]), tonumber(args[2])
  statuses = {}
end

function delay()
  return math.random(0, 2 * pause)
end

function request()
  local caller = math.random(0, callers - 1)
  ffi.C.clock_gettime(CLOCK_MONOTONIC, now)
  return string.format(
    "POST /convert HTTP/1.1\r\nHost: api\r\nX-Forwarded-For: 192.0.%d.%d\r\nAsked: %d %d%09d\r\nContent-Length: 0\r\n\r\n",
    math.floor(caller / 250), caller % 250 + 1, caller, tonumber(now.sec), tonumber(now.nsec))
end

function response(status)
  local key = tostring(status)
  statuses[key] = (statuses[key] or 0) + 1
end

function done(summary, latency)
  local sums, lines = {}, {}
  for _, thread in ipairs(threads) do
    for status, n in pairs(thread:get("statuses")) do
      sums[status] = (sums[status] or 0) + n
    end
  end
  for status, n in pairs(sums) do
    table.insert(lines, string.format('"%s": %d', status, n))
  end
  local errors = summary.errors
  io.write(string.format(
    '\n{"statuses": {%s}, "connect": %d, "read": %d, "write": %d, "late": %d, "half_micros": %d, "most_micros": %d}\n',
    table.concat(lines, ", "), errors.connect, errors.read, errors.write, errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
