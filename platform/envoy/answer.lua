-- The answer filter: the worker's answer of a call, rewritten for its client while it passes Envoy.
--
-- It replaces the id and the model's name, removes the usage that the client has not asked for, ends a
-- stream as OpenAI does, and reports what it saw to the access log. The rules are those of ChunkWriter
-- (serving/completions/sse.py), UsageMeter (usage.py) and HttpWorkerStream (engine/wire/worker_stream.py).
--
-- JSON is scanned and copied, not decoded: of an event only the top level and its choices are read. The
-- start of an event that equals the start of the one before (id, object, created, model) is not scanned
-- again. Cost: see docs/decisions/0036-envoy-data-plane.md.
--
-- Globals that the configuration defines before this text: BUFFERED_BYTES.

local CALL, ANSWER = "fairserve.call", "fairserve.answer"
local MAX_EVENT_BYTES = 8 * 1024 * 1024
local MAX_WHOLE_BYTES = 64 * 1024 * 1024
local MAX_ERROR_BYTES = 300
local BYTES_PER_TOKEN = 4

local byte, find, sub, match = string.byte, string.find, string.sub, string.match
local concat, format, gsub = table.concat, string.format, string.gsub

local QUOTE, BACKSLASH, OPEN, OPEN_LIST, COLON, COMMA, CLOSE, CLOSE_LIST =
  34, 92, 123, 91, 58, 44, 125, 93
local TRUE, FALSE, NULL = 116, 102, 110   -- first letters

-- Fields of a choice whose texts are output.
local TEXTS = {
  text = true, delta = true, message = true, content = true, reasoning = true,
  reasoning_content = true, refusal = true, tool_calls = true, ["function"] = true, name = true,
  arguments = true,
}

-- Headers of a worker's answer that a client gets beside those of FairServe.
local KEPT = {[":status"] = true, ["content-type"] = true, ["date"] = true, ["x-request-id"] = true,
  ["x-interaction-id"] = true, ["x-call-id"] = true, vary = true}

-- Scanning JSON ---------------------------------------------------------------------------------------
-- Each function takes a text and the position of a value, and returns the position behind it; nil if the
-- text is no JSON.

local function skip_space(s, i)
  local c = byte(s, i)
  while c == 32 or c == 10 or c == 13 or c == 9 do
    i = i + 1
    c = byte(s, i)
  end
  return i, c
end

local function skip_string(s, i)
  local from = i + 1
  while true do
    local quote = find(s, '"', from, true)
    if not quote then return nil end
    local before = quote - 1
    while byte(s, before) == BACKSLASH do before = before - 1 end
    if (quote - before) % 2 == 1 then return quote + 1 end
    from = quote + 1
  end
end

local function skip_value(s, i)
  local c = byte(s, i)
  if c == QUOTE then return skip_string(s, i) end
  if c ~= OPEN and c ~= OPEN_LIST then
    local last = find(s, "[,}%]%s]", i) or #s + 1
    if last == i then return nil end
    return last
  end
  local depth = 1
  i = i + 1
  while true do
    i = find(s, '["{}%[%]]', i)
    if not i then return nil end
    c = byte(s, i)
    if c == QUOTE then
      i = skip_string(s, i)
      if not i then return nil end
    else
      i = i + 1
      if c == OPEN or c == OPEN_LIST then
        depth = depth + 1
      else
        depth = depth - 1
        if depth == 0 then return i end
      end
    end
  end
end

-- Return the name of the next field of an object and the position of its value; behind the last field the
-- name is false and the position is the one behind the object; nil for no JSON.
local function key(s, i)
  local c
  i, c = skip_space(s, i)
  if c == COMMA then i, c = skip_space(s, i + 1) end
  if c == CLOSE then return false, i + 1 end
  if c ~= QUOTE then return nil end
  local behind = skip_string(s, i)
  if not behind then return nil end
  local name = sub(s, i + 1, behind - 2)
  i, c = skip_space(s, behind)
  if c ~= COLON then return nil end
  return name, (skip_space(s, i + 1))
end

-- Return the next field as its name, the first and the last position of its value, and the position
-- behind it; behind the last field the name is false, for no JSON it is nil.
local function field(s, i)
  local name, first = key(s, i)
  if not name then return name, nil, nil, first end
  local behind = skip_value(s, first)
  if not behind then return nil end
  return name, first, behind - 1, behind
end

-- Return the position of the next element of a list; nil behind the last one or for no JSON.
local function element(s, i)
  local c
  i, c = skip_space(s, i)
  if c == COMMA then i, c = skip_space(s, i + 1) end
  if c == CLOSE_LIST or c == nil then return nil end
  return i
end

-- Return whether Python takes the value for true.
local function is_true(s, from, to)
  local c = byte(s, from)
  if c == QUOTE then return to > from + 1 end
  if c == OPEN or c == OPEN_LIST then return skip_space(s, from + 1) ~= to end
  if c == TRUE then return true end
  if c == FALSE or c == NULL then return false end
  return tonumber(sub(s, from, to)) ~= 0
end

local function json_string(text)
  local escaped = gsub(text, '[%c"\\]', function(c)
    if c == '"' or c == "\\" then return "\\" .. c end
    return format("\\u%04x", byte(c))
  end)
  return '"' .. escaped .. '"'
end

-- Return the bytes of a JSON string in UTF-8.
local function string_bytes(s, from, to)
  local raw = sub(s, from + 1, to - 1)
  if not find(raw, "\\", 1, true) then return #raw end
  local bytes = #raw
  for escape, hex in string.gmatch(raw, "\\(.)(%x?%x?%x?%x?)") do
    if escape == "u" then
      local code = tonumber(hex, 16) or 0
      local size = code < 0x80 and 1 or code < 0x800 and 2 or 3
      if code >= 0xD800 and code < 0xE000 then size = 2 end   -- a half of four bytes
      bytes = bytes - 6 + size
    else
      bytes = bytes - 1
    end
  end
  return bytes
end

-- Return the bytes of the output texts in a value.
local function text_bytes(s, from, to)
  local c, bytes = byte(s, from), 0
  if c == QUOTE then return string_bytes(s, from, to) end
  if c == OPEN then
    local i, name, first, last = from + 1
    while true do
      name, first, last, i = field(s, i)
      if not name then return bytes end
      if TEXTS[name] then bytes = bytes + text_bytes(s, first, last) end
    end
  elseif c == OPEN_LIST then
    local i = element(s, from + 1)
    while i do
      local behind = skip_value(s, i)
      if not behind then return bytes end
      bytes = bytes + text_bytes(s, i, behind - 1)
      i = element(s, behind)
    end
  end
  return bytes
end

-- Return a string's text for a message; escapes stay, apart from quotes.
local function plain_text(s, from, to)
  if byte(s, from) == QUOTE then
    return (gsub(sub(s, from + 1, to - 1), '\\(["\\/])', "%1"))
  end
  return sub(s, from, to)
end

-- One answer ------------------------------------------------------------------------------------------

local function new_answer(call)
  return {
    part = call.stream and "delta" or "message",   -- field of a choice with its output
    id = json_string(call.id or ""),
    model = json_string(call.model or ""),
    include_usage = call.include_usage,
    continuous_usage = call.continuous_usage,
    prompt_tokens = call.prompt_tokens,
    worker = "",
    facts = {},          -- for the access log
    changed = {},        -- names of facts that the access log does not have yet
    begun = {}, finished = {}, open = 0, any_finished = false,
    usage = nil,         -- last usage object of the worker, as text
    usage_sent = false,
    shared = nil,        -- fields that all chunks share, for the chunk with the usage
    outputs = {}, output_count = 0,   -- choices with output in the present event
    chunks = 0, bytes = 0, output_tokens = 0, cached_tokens = nil,
    start_in = nil, start_out = nil,   -- start of the last event, and what became of it
  }
end

local function fact(answer, name, value)
  if answer.facts[name] ~= value then
    answer.facts[name] = value
    answer.changed[name] = value
  end
end

-- Give the access log the facts that are new.
local function report(handle, answer)
  local name, value = next(answer.changed)
  if not name then return end
  -- The object is valid until the filter next waits, so it is fetched each time.
  local metadata = handle:streamInfo():dynamicMetadata()
  while name do
    metadata:set(ANSWER, name, value)
    name, value = next(answer.changed, name)
  end
  answer.changed = {}
end

local function number_pattern(name)
  return '"' .. name .. '"%s*:%s*(%d+)%s*[,}]'
end
local OUTPUT, PROMPT = number_pattern("completion_tokens"), number_pattern("prompt_tokens")
local TOTAL, CACHED = number_pattern("total_tokens"), number_pattern("cached_tokens")

local function read_usage(answer, usage)
  answer.usage = usage
  local output = tonumber((match(usage, OUTPUT))) or 0
  local prompt = tonumber((match(usage, PROMPT))) or 0
  if prompt == 0 then prompt = (tonumber((match(usage, TOTAL))) or 0) - output end
  if prompt > 0 then fact(answer, "prompt_tokens", prompt) end
  if output > answer.output_tokens then answer.output_tokens = output end
  fact(answer, "output_tokens", answer.output_tokens)
  if find(usage, '"cached_tokens"', 1, true) then
    local cached = tonumber((match(usage, CACHED)))
    if cached and cached >= (answer.cached_tokens or 0) then
      answer.cached_tokens = cached
      fact(answer, "cached_tokens", cached)
    end
  end
end

-- Read the fields of a delta or a message; return the position behind it, whether it has output, and
-- whether it has a role.
local function read_part(answer, s, i)
  local output, role = false, false
  i = i + 1
  while true do
    local name, first, last
    name, first, last, i = field(s, i)
    if not name then return name == false and i or nil, output, role end
    if is_true(s, first, last) then
      if name == "role" then
        role = true
      else
        output = true
        if name == "tool_calls" then fact(answer, "tool_calls", true) end
      end
    end
  end
end

-- Read a choice; return the position behind it, whether it has content, whether it is visible to the
-- client, and whether it has output.
local function read_choice(answer, s, i)
  local output, ended, visible, index = false, false, false, "0"
  i = i + 1
  while true do
    local name, first = key(s, i)
    if name == nil then return nil end
    if not name then
      i = first
      break
    end
    if name == answer.part and byte(s, first) == OPEN then
      local some, role
      i, some, role = read_part(answer, s, first)
      output, visible = output or some, visible or role
    else
      i = skip_value(s, first)
      if i then
        if name == "text" then
          output = output or is_true(s, first, i - 1)
        elseif name == "finish_reason" then
          ended = byte(s, first) ~= NULL
        elseif name == "index" then
          index = sub(s, first, i - 1)
        elseif name == "logprobs" then
          visible = visible or is_true(s, first, i - 1)
        end
      end
    end
    if not i then return nil end
  end
  if not answer.begun[index] then
    answer.begun[index] = true
    answer.open = answer.open + 1
  end
  if ended then
    answer.any_finished = true
    if not answer.finished[index] then
      answer.finished[index] = true
      answer.open = answer.open - 1
    end
  end
  return i, output or ended, output or ended or visible, output
end

-- Read all choices; return the position behind them, whether there are any, one with content, and a
-- visible one. Choices with output are noted in `answer.outputs`, by their first and last position.
local function read_choices(answer, s, i)
  local some, content, visible, count = false, false, false, 0
  local outputs = answer.outputs
  local c = byte(s, i)
  if c ~= OPEN_LIST then
    answer.output_count = 0
    return skip_value(s, i), false, false, false
  end
  i = i + 1
  while true do
    i, c = skip_space(s, i)
    if c == COMMA then i, c = skip_space(s, i + 1) end
    if c == CLOSE_LIST then break end
    some = true
    local from, has_content, is_visible, has_output = i, false, true, false
    if c == OPEN then
      i, has_content, is_visible, has_output = read_choice(answer, s, i)
    else
      i = skip_value(s, i)
    end
    if not i then return nil end
    content, visible = content or has_content, visible or is_visible
    if has_output then
      outputs[count + 1], outputs[count + 2] = from, i - 1
      count = count + 2
    end
  end
  answer.output_count = count
  return i + 1, some, content, visible
end

-- Count the choices with output, of a chunk without usage.
local function count_outputs(answer, s)
  for i = 1, answer.output_count, 2 do
    answer.chunks = answer.chunks + 1
    answer.bytes = answer.bytes + text_bytes(s, answer.outputs[i], answer.outputs[i + 1])
  end
  fact(answer, "chunks", answer.chunks)
  fact(answer, "output_bytes", answer.bytes)
end

local function is_complete(answer)
  return answer.any_finished and answer.open == 0
end

-- Return the usage for the client: the worker's, or the counted one.
local function usage_of(answer)
  if answer.usage then return answer.usage end
  local output = math.max(answer.chunks, math.ceil(answer.bytes / BYTES_PER_TOKEN))
  local prompt = answer.prompt_tokens or 0
  return format('{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}',
    prompt, output, prompt + output)
end

local function error_body(message, code, kind)
  return '{"error":{"message":' .. json_string(message) .. ',"type":"' .. kind
    .. '","param":null,"code":"' .. code .. '"}}'
end

-- End the answer with an error: `reason` is for the log, `text` for the client.
local function fail(answer, reason, text)
  fact(answer, "error", sub(reason, 1, MAX_ERROR_BYTES))
  answer.over = true
  return error_body("worker " .. answer.worker .. " failed while it was answering: " .. text,
    "worker_failed", "worker_error")
end

local BROKE = "its connection broke, or it did not answer in time"
local REPORTED = "it reported an error"

-- Types of errors that reject the request itself, as in engine/wire/stream_events.py.
local REJECTIONS = { invalid_request_error = true, BadRequestError = true }
local ERROR_FIELDS = { message = true, type = true, param = true, code = true }

-- Return the reason of an error that the worker sent, and the client's error if it rejects the request.
local function read_error(answer, s, from, to)
  local text, kind, parts = nil, nil, {}
  if byte(s, from) == OPEN then
    local i, name, first, last = from + 1
    while true do
      name, first, last, i = field(s, i)
      if not name then break end
      if name == "message" then text = plain_text(s, first, last) end
      if name == "type" then kind = plain_text(s, first, last) end
      if ERROR_FIELDS[name] then parts[#parts + 1] = '"' .. name .. '":' .. sub(s, first, last) end
    end
  end
  local reason = "it reported: " .. (text or plain_text(s, from, to))
  if not REJECTIONS[kind] then return reason end
  fact(answer, "rejected", true)
  fact(answer, "error", sub(reason, 1, MAX_ERROR_BYTES))
  answer.over = true
  return reason, '{"error":{' .. concat(parts, ",") .. "}}"
end

-- Streams ---------------------------------------------------------------------------------------------

local function event(text)
  return "data: " .. text .. "\n\n"
end

-- Return the client's event of one event of the worker; empty if it is not for the client.
local function on_event(answer, s, now_ms)
  local parts, count = {}, 0
  local i, name, first, last
  local has_id, has_model, started = false, false, false
  local choices_from, choices_to, usage
  local some, content, visible = false, false, false
  answer.output_count = 0
  local start_in = answer.start_in
  if start_in and sub(s, 1, #start_in) == start_in then
    i, count, started = #start_in + 1, 1, true
    parts[1] = answer.start_out
    has_id, has_model = true, true
  else
    local c
    i, c = skip_space(s, 1)
    if c ~= OPEN then
      if skip_value(s, i) then
        return event(fail(answer, "it sent an event that is not an object", BROKE))
      end
      return event(fail(answer, "it sent an event that is not JSON", BROKE))
    end
    i = i + 1
  end
  local head = not answer.shared and {}
  while true do
    local before = i
    name, first = key(s, i)
    if not name then break end
    if name == "choices" then
      if not started and has_id and has_model and not usage and byte(s, before) == COMMA then
        -- All before the choices, with the comma: what follows is scanned in every event.
        answer.start_in, answer.start_out = sub(s, 1, before), concat(parts, ",", 1, count)
      end
      i, some, content, visible = read_choices(answer, s, first)
      choices_from, choices_to = first, (i or 0) - 1
    else
      i = skip_value(s, first)
      last = (i or 0) - 1
    end
    if not i then
      name = nil
      break
    end
    if name == "usage" then
      usage = byte(s, first) == OPEN and sub(s, first, last) or nil
    elseif name == "error" and is_true(s, first, last) then
      local reason, rejection = read_error(answer, s, first, last)
      return event(rejection or fail(answer, reason, REPORTED))
    elseif name == "id" then
      has_id = true
      count = count + 1
      parts[count] = '"id":' .. answer.id
    elseif name == "model" then
      has_model = true
      count = count + 1
      parts[count] = '"model":' .. answer.model
    elseif name ~= "choices" then
      count = count + 1
      parts[count] = '"' .. name .. '":' .. sub(s, first, last)
      if head and (name == "object" or name == "created") then head[#head + 1] = parts[count] end
    end
  end
  if name == nil then return event(fail(answer, "it sent an event that is not JSON", BROKE)) end
  if head and head[1] then answer.shared = head end
  fact(answer, "started", true)
  if usage then read_usage(answer, usage) else count_outputs(answer, s) end
  if content and not answer.facts.first_output_ms then fact(answer, "first_output_ms", now_ms()) end
  if some and not visible or not some and not answer.include_usage then return "" end
  if choices_from then
    count = count + 1
    parts[count] = '"choices":' .. sub(s, choices_from, choices_to)
  end
  if answer.include_usage then
    local shown = "null"
    if usage and (not some or answer.continuous_usage) then shown = usage end
    if not some and usage then answer.usage_sent = true end
    count = count + 1
    parts[count] = '"usage":' .. shown
  end
  if not has_id then
    count = count + 1
    parts[count] = '"id":' .. answer.id
  end
  if not has_model then
    count = count + 1
    parts[count] = '"model":' .. answer.model
  end
  return "data: {" .. concat(parts, ",", 1, count) .. "}\n\n"
end

-- Return the end of the client's stream.
local function on_done(answer)
  if not is_complete(answer) then
    return event(fail(answer, "it ended without a finish_reason", BROKE))
  end
  answer.over = true
  fact(answer, "complete", true)
  if not answer.include_usage or answer.usage_sent then return "data: [DONE]\n\n" end
  local parts = {'"id":' .. answer.id}
  for _, each in ipairs(answer.shared or {}) do parts[#parts + 1] = each end
  parts[#parts + 1] = '"model":' .. answer.model
  parts[#parts + 1] = '"choices":[]'
  parts[#parts + 1] = '"usage":' .. usage_of(answer)
  return event("{" .. concat(parts, ",") .. "}") .. "data: [DONE]\n\n"
end

-- Return the client's events of the lines that end in `text`.
local function on_lines(answer, text, now_ms)
  local out, count, from = {}, 0, 1
  while not answer.over do
    local line_end = find(text, "\n", from, true)
    if not line_end then break end
    if sub(text, from, from + 4) == "data:" then
      local first = skip_space(text, from + 5)
      local last = line_end - 1
      while last >= first do
        local c = byte(text, last)
        if c ~= 32 and c ~= 13 and c ~= 9 then break end
        last = last - 1
      end
      local data = sub(text, first, last)
      count = count + 1
      if data == "[DONE]" then
        out[count] = on_done(answer)
      else
        out[count] = on_event(answer, data, now_ms)
      end
    end
    from = line_end + 1
  end
  return concat(out, "", 1, count), from
end

local function stream(handle, answer)
  local held, held_bytes = {}, 0   -- parts of an event that has not arrived as a whole
  local function now_ms() return tonumber(handle:timestamp()) end
  for chunk in handle:bodyChunks() do
    local size = chunk:length()
    local out = ""
    if answer.over then
      out = ""
    elseif size == 0 then
      out = event(fail(answer, "the connection ended without [DONE]", BROKE))
    else
      local text = chunk:getBytes(0, size)
      if find(text, "\n", 1, true) then
        if held_bytes > 0 then
          held[#held + 1] = text
          text = concat(held)
          held, held_bytes = {}, 0
        end
        local rest
        out, rest = on_lines(answer, text, now_ms)
        if rest <= #text and not answer.over then
          held[1] = sub(text, rest)
          held_bytes = #held[1]
        end
      else
        held[#held + 1] = text
        held_bytes = held_bytes + size
      end
      if held_bytes > MAX_EVENT_BYTES and not answer.over then
        held, held_bytes = {}, 0
        out = out .. event(fail(answer, "it sent an event over " .. MAX_EVENT_BYTES .. " bytes", BROKE))
      end
    end
    chunk:setBytes(out)
    report(handle, answer)
  end
end

-- Whole answers ---------------------------------------------------------------------------------------

local NO_JSON = "its answer is not JSON"
local NOT_ENDED = "it sent an answer without choices that all have ended"

-- Return the client's object; nil and a reason if it is none, or reports an error, and the client's error
-- if the worker rejects the request.
local function rewrite(answer, s, now_ms)
  local i, c = skip_space(s, 1)
  if c ~= OPEN then return nil, "its answer is not an object" end
  i = i + 1
  local parts, count = {}, 0
  local name, first, last, choices_from, data_from, usage, content
  while true do
    name, first, last, i = field(s, i)
    if not name then break end
    if name == "error" and is_true(s, first, last) then
      return nil, read_error(answer, s, first, last)
    end
    if name == "choices" then choices_from = first end
    if name == "data" then data_from = first end
    if name == "usage" and byte(s, first) == OPEN then usage = sub(s, first, last) end
    if name ~= "id" and name ~= "model" and name ~= "usage" then
      count = count + 1
      parts[count] = '"' .. name .. '":' .. sub(s, first, last)
    end
  end
  if name == nil then return nil, NO_JSON end
  fact(answer, "started", true)
  if choices_from then
    local behind, _
    behind, _, content = read_choices(answer, s, choices_from)
    if not behind then return nil, NO_JSON end
    if not is_complete(answer) then return nil, NOT_ENDED end
    if content then fact(answer, "first_output_ms", now_ms()) end
  elseif not data_from or byte(s, data_from) ~= OPEN_LIST then
    return nil, NOT_ENDED
  end
  fact(answer, "complete", true)
  if usage then read_usage(answer, usage) else count_outputs(answer, s) end
  parts[count + 1] = '"id":' .. answer.id
  parts[count + 2] = '"model":' .. answer.model
  parts[count + 3] = '"usage":' .. usage_of(answer)
  return "{" .. concat(parts, ",", 1, count + 3) .. "}"
end

-- Rewrite an answer whose headers wait for its end, so that an error has its own status.
local function buffered(handle, answer, now_ms)
  local body = handle:body(true)
  local text = body:length() > 0 and body:getBytes(0, body:length()) or ""
  local out, reason, rejection = rewrite(answer, text, now_ms)
  if not out then
    out = rejection or fail(answer, reason, REPORTED)
    handle:headers():replace(":status", rejection and "400" or "502")
  end
  body:setBytes(out)
  report(handle, answer)
end

-- Rewrite an answer that is long, or of unknown length: it is held here until its end.
local function unbuffered(handle, answer, now_ms)
  local held, held_bytes = {}, 0
  for chunk in handle:bodyChunks() do
    local size, out = chunk:length(), ""
    if not answer.over then
      if size > 0 then
        held[#held + 1] = chunk:getBytes(0, size)
        held_bytes = held_bytes + size
      end
      local last = held[#held] or ""
      if held_bytes > MAX_WHOLE_BYTES then
        out = fail(answer, "its answer is longer than " .. MAX_WHOLE_BYTES .. " bytes", REPORTED)
        held = {}
      elseif size == 0 or find(last, "}%s*$", math.max(1, #last - 64)) then
        local whole, reason, rejection = rewrite(answer, concat(held), now_ms)
        if whole or size == 0 or reason ~= NO_JSON then
          out = whole or rejection or fail(answer, reason, REPORTED)
          answer.over = true
          held = {}
        end
      end
    end
    chunk:setBytes(out)
    report(handle, answer)
  end
end

-- Replace an answer that is not for the client: the second attempt could not be made.
local function replaced(handle, answer, status)
  local headers = handle:headers()
  local text = error_body("the worker answered with an error", "upstream_error", "upstream_error")
  fact(answer, "error", "it answered " .. status)
  headers:replace(":status", "502")
  headers:replace("content-type", "application/json")
  headers:remove("content-length")
  report(handle, answer)
  local first = true
  for chunk in handle:bodyChunks() do
    chunk:setBytes(first and text or "")
    first = false
  end
end

-- Headers ---------------------------------------------------------------------------------------------

local function is_kept(name)
  return KEPT[name] or sub(name, 1, 12) == "x-fairserve-" or sub(name, 1, 12) == "x-ratelimit-"
    or sub(name, 1, 15) == "access-control-"
end

local function remove_foreign(headers)
  local foreign = {}
  for name in pairs(headers) do
    if not is_kept(name) then foreign[#foreign + 1] = name end
  end
  for _, name in ipairs(foreign) do headers:remove(name) end
end

function envoy_on_response(handle)
  local call = handle:streamInfo():dynamicMetadata():get(CALL)
  if not call then return end
  local headers = handle:headers()
  if headers:get("x-fairserve-relay") then
    handle:streamInfo():dynamicMetadata():set(ANSWER, "relay", true)
    return
  end
  -- Envoy's own answers and those of the decision service come from no upstream.
  if not headers:get("x-envoy-upstream-service-time") then return end
  local answer = new_answer(call)
  answer.worker = headers:get("x-fairserve-worker") or ""
  local status, length = headers:get(":status"), tonumber((headers:get("content-length")))
  remove_foreign(headers)
  if status ~= "200" then return replaced(handle, answer, status) end
  if call.stream then
    headers:replace("content-type", "text/event-stream; charset=utf-8")
    headers:replace("cache-control", "no-cache")
    headers:replace("x-accel-buffering", "no")
    return stream(handle, answer)
  end
  headers:replace("content-type", "application/json")
  local function now_ms() return tonumber(handle:timestamp()) end
  if length and length > 0 and length <= BUFFERED_BYTES then
    return buffered(handle, answer, now_ms)
  end
  return unbuffered(handle, answer, now_ms)
end
