package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// check is one row of the table.
type check struct {
	group, name string
	looks       string // what the check inspects
	do          string // advice on trouble, unless the finding has its own
	run         func(context.Context, *fleet) finding
}

// checks is the table of all checks, in the order of the report.
var checks = []check{
	{"pool", "endpoints", "the pool has endpoints, and they answer",
		"start the engine, or correct its address and port; of a decode pod it is the sidecar's port", checkAnswers},
	{"pool", "pods", "the pods of a cluster are ready",
		"kubectl describe pod says why it is not", checkPods},
	{"pool", "roles", "the label " + roleLabel + " has known values, among them prefill and decode",
		"set the label " + roleLabel + " to prefill or decode", checkRoles},
	{"pool", "addresses", "no two endpoints have the same address",
		"give each endpoint an address or port of its own", checkAddresses},
	{"pool", "selector", "the pool selects the engines of this release and no others",
		"make the pool's selector equal to the labels of this release's engines (app.kubernetes.io/instance tells releases apart)", checkSelector},

	{"engines", "metrics", "metrics pages can be read and come from engines",
		"give the picker the address of the engine's own /metrics (metricsHost in an endpoints file)", checkMetrics},
	{"engines", "version", "all engines run the same version, one that Tandem was tested with",
		"run one version in both roles: engines compare versions before a hand-off", checkVersion},
	{"engines", "model", "all engines serve one model under one name",
		"start all engines with the same --model and --served-model-name strings: engines compare the string before a hand-off", checkModel},
	{"engines", "model-length", "all engines accept prompts of the same length",
		"start all engines with the same --max-model-len: one must not refuse a prompt that another accepts", checkLength},
	{"engines", "block-size", "the block size of the KV caches of prefill and decode, and of the picker's prefix index",
		"start all engines with the same --block-size (SGLang: --page-size, TensorRT-LLM: tokens_per_block), and put it into the picker's configuration (blockSizeTokens)", checkBlockSize},
	{"engines", "kv-cache", "data type, layout and hashing of the KV caches",
		"start all engines with the same --kv-cache-dtype and --prefix-caching-hash-algo, and with prefix caching on", checkCache},
	{"engines", "parallelism", "the tensor parallelism of prefill and decode",
		"give prefill no more --tensor-parallel-size than the model has KV heads", checkParallelism},

	{"hand-off", "connector", "engines have a KV connector",
		`start the engine with --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}' (decode: kv_consumer), or with the ` +
			"connector of the sidecars' --kv-connector", checkConnector},
	{"hand-off", "kv-role", "prefill engines may produce KV caches, decode engines may consume them",
		"set kv_role in --kv-transfer-config: kv_producer for prefill, kv_consumer for decode, or kv_both", checkKVRole},
	{"hand-off", "side-channel", "the side channels of prefill engines answer",
		"set VLLM_NIXL_SIDE_CHANNEL_HOST to the pod's address (status.podIP), and let decode pods reach port 5600 (NetworkPolicy)", checkSideChannel},
	{"hand-off", "peer-port", "the ports at which prefill engines with vLLM's MooncakeConnector or OffloadingConnector are found",
		"let decode pods reach the bootstrap port of Mooncake (VLLM_MOONCAKE_BOOTSTRAP_PORT, 8998) or the peer-to-peer tier (VLLM_P2P_SIDE_CHANNEL_PORT, " +
			"5710, and VLLM_P2P_SIDE_CHANNEL_HOST the pod's address), and give sidecars the same port", checkPeerPort},
	{"hand-off", "keeper", "the sidecars' keepers (NIXL agent processes), if they have any, run and keep running",
		"the sidecar's log says why, and /keeper --probe in its container: the image must have NIXL's library (target sidecar-nixl, " +
			"or --keeper-library), and UCX a transport (UCX_TLS, UCX_NET_DEVICES)", checkKeeper},
	{"hand-off", "leases", "keepers (NIXL agent processes) connect to prefill engines, renew hand-offs and release them",
		"let decode pods reach the side channels of prefill pods (NetworkPolicy; port 5600, and one more for each data-parallel rank), " +
			"and set VLLM_NIXL_SIDE_CHANNEL_HOST to the pod's address. The sidecar's log has the errors", checkLeases},
	{"hand-off", "modes", "SGLang's engines run in the modes of their roles, and what the pool cannot serve",
		"start prefill engines with --disaggregation-mode prefill, decode engines with decode, and label a plain engine decode or prefill-decode", checkModes},
	{"hand-off", "backend", "SGLang's engines have one transfer backend, one that Tandem was tested with",
		"start all engines with the same --disaggregation-transfer-backend", checkBackend},
	{"hand-off", "bootstrap", "the bootstrap servers of SGLang's prefill engines answer, and belong to these engines",
		"give each prefill engine of a host a --disaggregation-bootstrap-port of its own (8998 is also that of vLLM's Mooncake connector), let decode " +
			"pods reach it (NetworkPolicy), and start the engine anew: it does not try again", checkBootstrap},
	{"hand-off", "ranks", "the data-parallel ranks of SGLang's prefill engines",
		"by --load-balance-method follow_bootstrap_room requests fail unless the router names the rank in both legs, as Tandem's sidecar does", checkRanks},
	{"hand-off", "time-outs", "how long SGLang's engines wait for the other leg",
		"set " + bootstrapTimeout + " on prefill and " + waitingTimeout + " on decode engines to a little less than the sidecar's --prefill-timeout, such as 55: " +
			"decode forgets a prefill engine that was restarted only when a request has run into it", checkTimeouts},
	{"hand-off", "protocol", "sidecars speak the hand-off protocol of their engines",
		"give the sidecar the --kv-connector of its engine", checkProtocol},
	{"hand-off", "pairs", "each decode engine reads the KV caches of a prefill engine",
		"start one of both engines anew, so that they are alike in this", checkPairs},
	{"hand-off", "labels", "labels about KV caches are true of their engines",
		"correct or remove the label: the picker pairs engines by it", checkLabels},
	{"hand-off", "link-speed", "vLLM's decode engines read KV caches over NIXL as fast as RDMA, NVLink or shared memory are",
		overTCP, checkLinkSpeed},
	{"hand-off", "probe", "a short request for each pair of engines is prefilled remotely (--probe)",
		"the reason comes from the sidecar; its log has the details", checkProbe},

	{"request path", "sidecar", "each decode engine has a sidecar in front of it, and engines that only prefill have none",
		"start a sidecar in front of the engine, and put the sidecar's port into the pool, not the engine's", checkSidecar},
	{"request path", "picker", "the picker is ready",
		"start it, or correct its address; its log says what it waits for", checkPicker},
	{"request path", "picker-config", "the picker could read its configuration and its endpoints",
		"tandem check FILE lists what is wrong with a configuration; the last good one is in use", checkPickerConfig},
	{"request path", "picker-pool", "the picker knows the endpoints of this pool and no others",
		"give the picker the same endpoints file, pool or selector", checkPickerPool},
	{"request path", "freshness", "the loads that the picker uses are fresh",
		"the picker must reach the metrics page of every endpoint (NetworkPolicy, metricsHost)", checkFreshness},
	{"request path", "kv-events", "the picker hears the engines' KV events, if it goes by them, and they fit what engines report",
		"the picker's /debug/prefix (admin port) shows each engine; docs/howto/kv-events.md says what can be wrong", checkKVEvents},
	{"request path", "tokens", "the picker's tokenizers count as many tokens in prompts as the engines do",
		"give token-producer the tokenizer.json and the chat template that the engines have (local.modelTokenizerMap, local.chatTemplateMap), " +
			"or a tokenizer service (vllm.url), which is then asked instead", checkTokens},
	{"request path", "service", "the Service named by the InferencePool leads to pickers",
		"make the pool's endpointPickerRef name the picker's Service and its ext-proc port", checkService},
	{"request path", "proxy", "clients reach the same model through the proxy",
		"the proxy's log says why; tandem envoy-config writes a configuration that works", checkProxy},

	{"connections", "tls", "certificates are valid now and for two weeks; with --ca-file, also signer and name",
		"renew the certificate in its Secret; it is read again without a restart", checkTLS},
	{"connections", "clock", "clocks agree, by the Date headers of responses",
		"synchronise the clocks of the nodes (NTP)", checkClock},
	{"connections", "keep-alive", "servers keep idle connections longer than their clients do",
		"raise the keep-alive of the server above that of its clients (vLLM: VLLM_HTTP_TIMEOUT_KEEP_ALIVE=300)", checkKeepAlive},
}

// verdict is the result of a check.
type verdict string

// The verdicts.
const (
	ok      verdict = "ok"
	warn    verdict = "warn"
	fail    verdict = "FAIL"
	unknown verdict = "unknown"
	none    verdict = "" // the pool has nothing of the kind
)

// finding is a verdict and what the check saw.
type finding struct {
	verdict verdict
	seen    string
	do      string // replaces the check's own advice
}

// examine runs all checks at once.
func (f *fleet) examine(ctx context.Context, p *progress) report {
	found := make([]finding, len(checks))
	numbers := make([]int, len(checks))
	for i := range numbers {
		numbers[i] = i
	}
	stop := p.start()
	parallel(numbers, func(i int) {
		found[i] = checks[i].run(ctx, f)
		p.done(checks[i].name)
	})
	stop()
	var r report
	for i, c := range checks {
		if found[i].verdict != none {
			r.add(c, found[i])
		}
	}
	return r
}

// each inspects all items in parallel, with a deadline for each, and returns the worst findings.
func each[T fmt.Stringer](ctx context.Context, items []T, limit time.Duration, look func(context.Context, T) finding) finding {
	found := make([]finding, len(items))
	numbers := make([]int, len(items))
	for i := range numbers {
		numbers[i] = i
	}
	parallel(numbers, func(i int) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		found[i] = look(ctx, items[i])
	})
	return worst(items, found)
}

// severity orders verdicts.
var severity = []verdict{none, ok, unknown, warn, fail}

// worst returns the worst of the verdicts, with the items that have it. Items with the same text are listed together.
func worst[T fmt.Stringer](items []T, found []finding) (all finding) {
	for _, f := range found {
		if slices.Index(severity, f.verdict) > slices.Index(severity, all.verdict) {
			all.verdict, all.do = f.verdict, f.do
		}
	}
	var order []string
	names := map[string][]string{} // text to names of items
	for i, f := range found {
		if f.verdict == all.verdict {
			if names[f.seen] == nil {
				order = append(order, f.seen)
			}
			names[f.seen] = append(names[f.seen], items[i].String())
		}
	}
	if len(order) == 1 && len(names[order[0]]) == len(items) && len(items) > 1 {
		all.seen = fmt.Sprintf("all %d: %s", len(items), order[0])
		return all
	}
	texts := make([]string, len(order))
	for i, text := range order {
		texts[i] = few(names[text]) + ": " + text
	}
	all.seen = fewOf(texts, "; ")
	return all
}

// mostShown is how many items a line names at most.
const mostShown = 4

func few(names []string) string { return fewOf(names, ", ") }

func fewOf(texts []string, separator string) string {
	if rest := len(texts) - mostShown; rest > 0 {
		texts = append(slices.Clone(texts[:mostShown]), fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(texts, separator)
}

// differ lists which items have which value, or returns "" if all have the same.
func differ(items []*target, value func(*target) string) string {
	var order []string
	holders := map[string][]string{}
	for _, t := range items {
		v := value(t)
		if holders[v] == nil {
			order = append(order, v)
		}
		holders[v] = append(holders[v], t.name)
	}
	if len(order) < 2 {
		return ""
	}
	texts := make([]string, len(order))
	for i, v := range order {
		texts[i] = fmt.Sprintf("%s (%s)", v, few(holders[v]))
	}
	return fewOf(texts, ", ")
}
