package bench

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// protocol is a hand-off protocol: how a sidecar is set to it, and what the engines that speak it answer. The zero value is the
// sidecar's default, vLLM with NixlConnector, with answers that are set by hand.
type protocol struct {
	name   string // in the names of series
	atOnce bool   // both legs are sent at once
	// flags returns those of the sidecar; nil: it needs none.
	flags func(s *legs) []string
	// prefilled returns the answer of a prefill engine to a prompt of size bytes. id is what the leg names the transfer by.
	prefilled func(size int, id string) string
	// idMark ends before the id in the body of the prefill leg; "": answers do not repeat it.
	idMark string
	// decoded is the answer of a decode engine.
	decoded string
	// readsBack says that the prefill engine reads most of the prompt from the decode engine, which another leg asks for it first.
	readsBack bool
}

// nixl is the sidecar's default.
func nixl() protocol {
	return protocol{prefilled: func(size int, _ string) string { return prefilled(size) }, decoded: decoded}
}

// sglang is the protocol of SGLang, of whose prefill engine only the status counts.
func sglang() protocol {
	p := nixl()
	p.atOnce, p.flags = true, connector("sglang")
	return p
}

// protocols are those that have series of their own. The engines of MultiConnector, of which NixlConnector is the first, send and get
// what those of the default do.
func protocols() []protocol {
	mooncake := func(s *legs) []string {
		return connector("mooncake", "mooncake-bootstrap-port="+portOf(s.prefill.addr()))(s)
	}
	handed := func(params func(size int) string) func(int, string) string {
		return func(size int, _ string) string { return handedOff(size, params(size)) }
	}
	none := handed(func(int) string { return "null" })
	const write, local = "moriio-write-mode", "moriio-local-pod-ip=127.0.0.1"
	return []protocol{
		{name: "nixl-push", flags: connector("nixl-push"), prefilled: handed(func(size int) string { return nixlParams(size, 0, "push") }), decoded: decoded},
		{name: "read back", flags: connector("nixlv2", "read-back", "pod-ip=127.0.0.1"), readsBack: true, decoded: decoded,
			prefilled: handed(func(size int) string { return nixlParams(size, readBackTokens(size), "pull") })},
		{name: "shared-storage", flags: connector("shared-storage"), prefilled: none, decoded: decodedCached},
		{name: "mooncake", atOnce: true, flags: mooncake, prefilled: none, decoded: decodedCached},
		{name: "offloading", atOnce: true, flags: connector("offloading"), prefilled: none, decoded: decodedCached},
		{name: "moriio", flags: connector("moriio", write, local), prefilled: moriioPrefilled, idMark: transferMark, decoded: decodedCached},
		{name: "moriio at once", atOnce: true, flags: connector("moriio", write, local, "moriio-parallel-dispatch"), prefilled: moriioPrefilled,
			idMark: transferMark, decoded: decodedCached},
		{name: "trtllm", flags: connector("trtllm"), prefilled: trtllmPrefilled, idMark: disaggregatedMark, decoded: decoded},
		{name: "trtllm at once", atOnce: true, flags: connector("trtllm-generation-first"), prefilled: trtllmPrefilled,
			idMark: disaggregatedMark, decoded: decoded},
	}
}

// connector returns the flags of a sidecar, without their dashes.
func connector(name string, more ...string) func(*legs) []string {
	flags := []string{"--kv-connector=" + name}
	for _, flag := range more {
		flags = append(flags, "--"+flag)
	}
	return func(*legs) []string { return flags }
}

func portOf(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic(err) // a listener's address
	}
	return port
}

// The members by which the legs of a request name its transfer.
const (
	transferMark      = `"transfer_id":"`
	disaggregatedMark = `"disagg_request_id":`
)

// noTransfer stands for the id in answers to legs that name none: those of baselines.
const noTransfer = "0"

// transferOf returns the id after a mark in a leg's body.
func transferOf(leg []byte, mark string) string {
	_, rest, ok := bytes.Cut(leg, []byte(mark))
	end := bytes.IndexAny(rest, `",}`)
	if !ok || end < 0 {
		return noTransfer
	}
	return string(rest[:end])
}

// prefilling has an engine answer prefill legs for prompts of size bytes, if its answers repeat the ids of transfers.
func (p protocol) prefilling(e *engine, size int) {
	if p.idMark == "" {
		return
	}
	const place = "{id}"
	document := p.prefilled(size, place)
	e.makes(func(leg []byte) answer { return whole(strings.ReplaceAll(document, place, transferOf(leg, p.idMark))) })
}

// lending has a decode engine hand over the beginning of prompts of size bytes, where it is asked to.
func (p protocol) lending(e *engine, size int) {
	if !p.readsBack {
		return
	}
	part := readBackTokens(size) * bytesPerToken
	lent, other := whole(handedOff(part, nixlParams(part, 0, "pull"))), whole(p.decoded)
	e.makes(func(leg []byte) answer {
		if bytes.Contains(leg, []byte(`"do_remote_decode":true`)) {
			return lent
		}
		return other
	})
}

// readBackTokens is how much of a prompt of size bytes the decode engine has: the earlier turns of a conversation. Of the smallest prompt
// of a series it is more than the sidecar has read back at least.
func readBackTokens(size int) int { return size / bytesPerToken * 3 / 4 }

// nixlParams returns the hand-off of a vLLM 0.32 prefill engine with NIXL. Of the prompt, cached tokens were in its cache, or read.
func nixlParams(size, cached int, mode string) string {
	return fmt.Sprintf(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[%s]],`+
		`"remote_engine_id":"5b2f7c0e-54a1-4d0f-9d1e-0d6c1f6f2a11","remote_request_id":"cmpl-bench-0-8f2d",`+
		`"remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"pp_size":1,"remote_num_tokens":%d,`+
		`"remote_prefill_cached_tokens":%d,"remote_blocks_expiry_time":null,"transfer_mode":"%s"}`, blockIDs(size), size/bytesPerToken, cached, mode)
}

// blockIDs returns a list of the blocks of a prompt of size bytes.
func blockIDs(size int) string {
	tokens := size / bytesPerToken
	var ids []byte
	for block := range (tokens + tokensPerBlock - 1) / tokensPerBlock {
		if block > 0 {
			ids = append(ids, ',')
		}
		ids = strconv.AppendInt(ids, int64(4000+block), 10)
	}
	return string(ids)
}

// handedOff returns the answer of a vLLM prefill engine to the first leg of a completion of size bytes.
func handedOff(size int, params string) string {
	tokens := size / bytesPerToken
	return fmt.Sprintf(`{"id":"cmpl-bench","object":"text_completion","created":1700000000,"model":"bench",`+
		`"choices":[{"index":0,"text":" the","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":%d,`+
		`"total_tokens":%d,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}},"kv_transfer_params":%s}`, tokens, tokens+1, params)
}

// moriioPrefilled is that of an engine with MoRIIOConnector.
func moriioPrefilled(size int, id string) string {
	return handedOff(size, fmt.Sprintf(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[%s]],`+
		`"remote_engine_id":"127.0.0.1:6301","remote_host":"127.0.0.1","remote_handshake_port":6301,"remote_notify_port":61005,`+
		`"remote_dp_rank":0,"remote_dp_rank_override":true,"remote_dp_size":1,"remote_dp_size_local":1,"tp_size":1,"transfer_id":"%s"}`,
		blockIDs(size), id))
}

// trtllmPrefilled returns the answer of a context engine of TensorRT-LLM 1.2, with the ids of the prompt.
func trtllmPrefilled(size int, id string) string {
	tokens := size / bytesPerToken
	var ids []byte
	for token := range tokens {
		if token > 0 {
			ids = append(ids, ", "...)
		}
		ids = strconv.AppendInt(ids, int64(1000+token%20000), 10)
	}
	return fmt.Sprintf(`{"id":"cmpl-bench","object":"text_completion","created":1700000000,"model":"bench",`+
		`"choices":[{"index":0,"text":" the","token_ids":null,"logprobs":null,"context_logits":null,"finish_reason":"length","stop_reason":null,`+
		`"disaggregated_params":{"request_type":"context_only","first_gen_tokens":[262],"first_gen_log_probs":null,"first_gen_logits":null,`+
		`"ctx_request_id":%[2]s,"encoded_opaque_state":"%[4]s","draft_tokens":null,"disagg_request_id":%[2]s,"ctx_dp_rank":0,`+
		`"ctx_info_endpoint":null,"schedule_style":null,"ctx_usage":null}}],"usage":{"prompt_tokens":%[1]d,"total_tokens":%[3]d,`+
		`"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}},"prompt_token_ids":[%[5]s]}`,
		tokens, id, tokens+1, opaqueState, ids)
}

// opaqueState is as long as the state of a transceiver with one rank.
const opaqueState = "AAAAAAAAAAABAAAAAAAAAAgAAAAAAAAAMTI3LjAuMC4xAAAAAAAAAAEAAAAAAAAAIAAAAAAAAAABAAAAAAAAAAEAAAAAAAAAQAAAAAAAAAA="
