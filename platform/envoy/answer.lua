-- The answer filter.
function envoy_on_response(handle) end
