-- Checks each request with tidegate before HAProxy passes it on. Needs HAProxy 2.5 or later with Lua.

-- HTTP listeners of the nodes, used in turn.
local nodes = { "127.0.0.1:8081", "127.0.0.1:8082", "127.0.0.1:8083" }
local turn = 0

core.register_action("tidegate", { "http-req" }, function(txn)
    local headers = {
        ["x-original-uri"] = { txn.sf:url() },
        ["x-original-method"] = { txn.sf:method() },
        ["x-forwarded-for"] = { txn.sf:src() },
    }
    -- Each node is tried once. If none answers, the request passes.
    for _ = 1, #nodes do
        turn = turn % #nodes + 1
        local answer = core.httpclient():get({
            url = "http://" .. nodes[turn] .. "/auth",
            headers = headers,
            timeout = 50,
        })
        if answer and (answer.status == 200 or answer.status == 403 or answer.status == 429) then
            if answer.status ~= 200 then
                local retry = answer.headers["retry-after"]
                txn:set_var("txn.limited", true)
                txn:set_var("txn.retry_after", retry and retry[0] or "1")
            end
            return
        end
    end
    txn:Warning("no tidegate node answers; the request passes unlimited")
end)
