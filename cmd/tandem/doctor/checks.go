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
	looks       string // what it looks at
	do          string // what to do on trouble, unless the finding knows better
	run         func(context.Context, *fleet) finding
}

// checks is all that is looked at, in the order in which it is shown.
var checks = []check{
	{"pool", "endpoints", "that there are any, and that they answer",
		"start the engine, or correct its address and port; of a decode pod it is the sidecar's port", checkAnswers},
	{"pool", "pods", "that the pods of a cluster are ready",
		"kubectl describe pod says why it is not", checkPods},
	{"pool", "roles", "the label " + roleLabel + ": known values, prefill and decode",
		"set the label " + roleLabel + " to prefill or decode", checkRoles},
	{"pool", "addresses", "that no two endpoints are at one address",
		"give each endpoint an address or port of its own", checkAddresses},
	{"pool", "selector", "that the pool selects the engines of this release and no others",
		"make the pool's selector equal to the labels of this release's engines (app.kubernetes.io/instance tells releases apart)", checkSelector},

	{"engines", "metrics", "that metrics pages can be read, and are an engine's",
		"give the picker an address whose /metrics is the engine's (metricsHost in an endpoints file)", checkMetrics},
	{"engines", "version", "that all run one version, and one that Tandem was tested with",
		"run one version in both roles: engines compare it before they hand KV caches over", checkVersion},
	{"engines", "model", "that all serve one model under one name",
		"start all engines with the same --model and --served-model-name strings: the string is part of what engines compare", checkModel},
	{"engines", "model-length", "that all take prompts of one length",
		"start all engines with the same --max-model-len: what one takes, the other must not refuse", checkLength},
	{"engines", "block-size", "KV cache blocks of prefill, decode and the picker's prefix index",
		"start all engines with the same --block-size, and put it into the picker's configuration (blockSizeTokens)", checkBlockSize},
	{"engines", "kv-cache", "type, layout and hashing of the KV cache",
		"start all engines with the same --kv-cache-dtype and --prefix-caching-hash-algo, and with prefix caching on", checkCache},
	{"engines", "parallelism", "tensor parallelism of prefill, which must not exceed decode's",
		"give prefill no more --tensor-parallel-size than decode, unless the model uses multi-head latent attention", checkParallelism},

	{"hand-off", "connector", "that engines have a KV connector",
		`start the engine with --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}' (decode: kv_consumer)`, checkConnector},
	{"hand-off", "kv-role", "that prefill may produce KV caches and decode may consume them",
		"set kv_role in --kv-transfer-config: kv_producer for prefill, kv_consumer for decode, or kv_both", checkKVRole},
	{"hand-off", "side-channel", "that the side channels of prefill engines answer",
		"set VLLM_NIXL_SIDE_CHANNEL_HOST to the pod's address (status.podIP), and let decode pods reach port 5600 (NetworkPolicy)", checkSideChannel},
	{"hand-off", "keeper", "that the sidecars' keepers are up, and stay so, if they have one",
		"the sidecar's log says why, and /keeper --probe in its container: the image must have NIXL's library (target sidecar-nixl, " +
			"or --keeper-library), and UCX a transport (UCX_TLS, UCX_NET_DEVICES)", checkKeeper},
	{"hand-off", "leases", "that keepers meet prefill engines, hold their hand-offs and give them back",
		"let decode pods reach the side channels of prefill pods (NetworkPolicy; port 5600, and one more for each data-parallel rank), " +
			"and set VLLM_NIXL_SIDE_CHANNEL_HOST to the pod's address. The sidecar's log has what each said", checkLeases},
	{"hand-off", "probe", "a short request for each pair, prefilled remotely (--probe)",
		"the reason is the sidecar's; its log has the rest", checkProbe},

	{"way in", "sidecar", "that a sidecar is before each decode engine, and none before those that only prefill",
		"start a sidecar before the engine and name its port in the pool, not the engine's", checkSidecar},
	{"way in", "picker", "that the picker is ready",
		"start it, or correct its address; its log says what it waits for", checkPicker},
	{"way in", "picker-config", "that its configuration and its endpoints could be read",
		"tandem check FILE lists what is wrong with a configuration; the last good one is in use", checkPickerConfig},
	{"way in", "picker-pool", "that it knows the endpoints of this pool and no others",
		"give the picker the same endpoints file, pool or selector", checkPickerPool},
	{"way in", "freshness", "how old the loads are that it picks by",
		"the picker must reach the metrics page of every endpoint (NetworkPolicy, metricsHost)", checkFreshness},
	{"way in", "service", "that the Service that the InferencePool names leads to pickers",
		"make the pool's endpointPickerRef name the picker's Service and its ext-proc port", checkService},
	{"way in", "proxy", "that clients get through to the same model",
		"the proxy's log says why; tandem envoy-config writes a configuration that works", checkProxy},

	{"all", "tls", "certificates: valid now and for two weeks, and for this name where --ca-file says whose",
		"renew the certificate in its Secret; it is read again without a restart", checkTLS},
	{"all", "clock", "clocks, by the dates of answers",
		"synchronise the clocks of the nodes (NTP)", checkClock},
	{"all", "keep-alive", "that nobody closes idle connections before who keeps them",
		"raise the keep-alive of the server above that of its clients (vLLM: VLLM_HTTP_TIMEOUT_KEEP_ALIVE=300)", checkKeepAlive},
}

// verdict is how a check ended.
type verdict string

// The verdicts.
const (
	ok      verdict = "ok"
	warn    verdict = "warn"
	fail    verdict = "FAIL"
	unknown verdict = "unknown"
	none    verdict = "" // there is nothing of the kind to look at
)

// finding is what a check saw.
type finding struct {
	verdict verdict
	seen    string
	do      string // instead of the check's own advice
}

// examine runs all checks at once.
func (f *fleet) examine(ctx context.Context) report {
	found := make([]finding, len(checks))
	numbers := make([]int, len(checks))
	for i := range numbers {
		numbers[i] = i
	}
	parallel(numbers, func(i int) { found[i] = checks[i].run(ctx, f) })
	var r report
	for i, c := range checks {
		if found[i].verdict != none {
			r.add(c, found[i])
		}
	}
	return r
}

// each looks at all items at once, with a deadline for each, and tells the worst of what it sees.
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

// worst says what those items have in common that are worst off. What was seen of several is said once.
func worst[T fmt.Stringer](items []T, found []finding) (all finding) {
	for _, f := range found {
		if slices.Index(severity, f.verdict) > slices.Index(severity, all.verdict) {
			all.verdict, all.do = f.verdict, f.do
		}
	}
	var order []string
	names := map[string][]string{} // of those of whom the same was seen
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

// mostShown bounds how many items a line names.
const mostShown = 4

func few(names []string) string { return fewOf(names, ", ") }

func fewOf(texts []string, separator string) string {
	if rest := len(texts) - mostShown; rest > 0 {
		texts = append(slices.Clone(texts[:mostShown]), fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(texts, separator)
}

// differ tells which items have which value, if they do not all have the same; "" if they do.
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
