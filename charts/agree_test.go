package charts_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tandem-serving/tandem/pd/dialect"
)

// TestPartsAgree holds what the chart derives on several sides from one value: the sides must say the same, in whatever values.
func TestPartsAgree(t *testing.T) {
	for name, args := range cases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := readRelease(t, render(t, append(args, monitors...)...))
			r.portsAgree(t)
			r.enginesAgree(t)
			r.selectorsAgree(t)
			r.scalersAgree(t)
			r.endsAgree(t)
		})
	}
}

// TestEveryProtocolOfVLLM holds that the values can choose each of the sidecar's protocols for vLLM's engines, and that a case renders it.
func TestEveryProtocolOfVLLM(t *testing.T) {
	rendered := map[string]bool{}
	for _, args := range cases(t) {
		rendered[readRelease(t, render(t, args...)).sidecars()[0].flags["kv-connector"]] = true
	}
	for _, row := range dialect.Table {
		if row.Engine == dialect.VLLM && !rendered[row.Name] {
			t.Errorf("nothing in testdata/values has the protocol %s", row.Name)
		}
	}
}

// TestEndsAgree holds the arithmetic of time-outs at both ends of what may be set.
func TestEndsAgree(t *testing.T) {
	for _, seconds := range []int{20, 43, 3600} {
		args := append(cases(t)["sim"], "--set=drainSeconds="+strconv.Itoa(seconds), "--set=engine.leaseSeconds=5",
			"--set=sidecar.firstEventTimeoutSeconds=5")
		readRelease(t, render(t, args...)).endsAgree(t)
	}
}

// parts is a release, taken apart.
type parts struct {
	all  objects
	pods map[string]*unstructured.Unstructured // by component; the workers of a group are one with workerSuffix
	run  map[string]map[string]commandLine     // by component and container
}

// commandLine is what a container is started with: arguments without a flag, and flags with their values.
type commandLine struct {
	operands []string
	flags    map[string]string
	env      map[string]string
	hook     map[string]string // flags of preStop
}

func readRelease(t *testing.T, all objects) parts {
	t.Helper()
	r := parts{all: all, pods: map[string]*unstructured.Unstructured{}, run: map[string]map[string]commandLine{}}
	for _, pod := range all.pods(t) {
		component := pod.GetLabels()["app.kubernetes.io/component"]
		if strings.HasSuffix(pod.GetName(), workerSuffix) {
			component += workerSuffix
		}
		r.pods[component], r.run[component] = pod, map[string]commandLine{}
		for _, c := range containers(t, pod) {
			r.run[component][c["name"].(string)] = readCommand(c)
		}
	}
	return r
}

func readCommand(container map[string]any) commandLine {
	args, _, _ := unstructured.NestedStringSlice(container, "args")
	hook, _, _ := unstructured.NestedStringSlice(container, "lifecycle", "preStop", "exec", "command")
	line := commandLine{env: map[string]string{}}
	line.operands, line.flags = readFlags(args)
	_, line.hook = readFlags(strings.Fields(strings.Join(hook, " ")))
	if len(hook) == 2 && hook[0] == "/bin/sleep" {
		line.hook["timeout"] = hook[1] + "s"
	}
	env, _, _ := unstructured.NestedSlice(container, "env")
	for _, e := range env {
		if variable := e.(map[string]any); variable["value"] != nil {
			line.env[variable["name"].(string)] = variable["value"].(string)
		}
	}
	return line
}

func readFlags(args []string) (operands []string, flags map[string]string) {
	flags = map[string]string{}
	for _, arg := range args {
		flag, isFlag := strings.CutPrefix(arg, "--")
		name, value, _ := strings.Cut(flag, "=")
		if isFlag {
			flags[name] = value
		} else {
			operands = append(operands, arg)
		}
	}
	return operands, flags
}

// same holds that values of different places are one.
func same(t *testing.T, what string, values ...string) {
	t.Helper()
	if slices.Sort(values); len(slices.Compact(slices.Clone(values))) != 1 || values[0] == "" {
		t.Errorf("%s: the parts say %q", what, values)
	}
}

// sidecars are those of the decode pod, by rank.
func (r parts) sidecars() (all []commandLine) {
	for _, name := range slices.Sorted(maps.Keys(r.run["decode"])) {
		if strings.HasPrefix(name, "sidecar") {
			all = append(all, r.run["decode"][name])
		}
	}
	return all
}

func (r parts) portsAgree(t *testing.T) {
	t.Helper()
	targets := r.targetPorts(t)
	prefill, decode := number(t, r.run["prefill"]["engine"].flags["port"]), number(t, r.run["decode"]["engine"].flags["port"])
	same(t, "the first target port and the prefill engine's", strconv.Itoa(targets[0]), strconv.Itoa(prefill))
	for rank, sidecar := range r.sidecars() {
		same(t, "the target port and the sidecar's", strconv.Itoa(targets[rank]), sidecar.flags["port"])
		same(t, "the decode engine's port", strconv.Itoa(decode+rank), sidecar.flags["model-server-port"])
		if r.run["decode"]["engine"].flags["host"] != "127.0.0.1" {
			t.Error("the decode engine can be reached past its sidecar")
		}
	}
	for component, ranks := range map[string]int{"prefill": r.ranks(t, "prefill"), "decode": len(r.sidecars())} {
		active := r.pods[component].GetAnnotations()["llm-d.ai/active-ports"]
		if ranks == len(targets) {
			same(t, "active ports of "+component, "none", "none"+active)
			continue
		}
		var want []string
		for _, port := range targets[:ranks] {
			want = append(want, strconv.Itoa(port))
		}
		same(t, "active ports of "+component, active, strings.Join(want, ","))
	}
}

// ranks returns at how many ports a pod has engines: the ranks of a group have one.
func (r parts) ranks(t *testing.T, component string) int {
	t.Helper()
	flags := r.run[component]["engine"].flags
	if size, ok := flags["data-parallel-size"]; ok && flags["nnodes"] == "" {
		return number(t, size)
	}
	return 1
}

// targetPorts are those that the picker reckons with, and the gateway.
func (r parts) targetPorts(t *testing.T) (ports []int) {
	t.Helper()
	if text, ok := r.run["epp"]["epp"].flags["endpoint-target-ports"]; ok {
		for port := range strings.SplitSeq(text, ",") {
			ports = append(ports, number(t, port))
		}
		return ports
	}
	found, _, err := unstructured.NestedSlice(r.all.of("InferencePool")[0].Object, "spec", "targetPorts")
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range found {
		ports = append(ports, number(t, fmt.Sprint(port.(map[string]any)["number"])))
	}
	return ports
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (r parts) enginesAgree(t *testing.T) {
	t.Helper()
	prefill, decode, sidecar := r.run["prefill"]["engine"], r.run["decode"]["engine"], r.sidecars()[0]
	block := "block-size"
	if _, ok := prefill.flags["page-size"]; ok { // SGLang
		block = "page-size"
	}
	size, shared := prefill.flags[block], []string{block, "served-model-name"}
	if _, ok := prefill.flags["extra_llm_api_options"]; ok {
		size, shared = r.trtllmAgrees(t, prefill, decode, sidecar), []string{"max_seq_len"}
	}
	for _, flag := range shared {
		same(t, flag, prefill.flags[flag], decode.flags[flag])
	}
	var picker struct {
		Plugins []struct {
			Type       string         `yaml:"type"`
			Parameters map[string]any `yaml:"parameters"`
		} `yaml:"plugins"`
	}
	if err := yaml.Unmarshal([]byte(data(t, r.all.named(t, "ConfigMap", "-epp"), "config.yaml")), &picker); err != nil {
		t.Fatal(err)
	}
	for _, p := range picker.Plugins {
		if p.Type == "approx-prefix-cache-producer" {
			same(t, "block size", size, fmt.Sprint(p.Parameters["blockSizeTokens"]))
		}
	}
	switch lease, ok := prefill.flags["kv-lease"]; {
	case ok: // the simulated engine
		same(t, "lease", lease, sidecar.flags["lease"])
		return
	case block == "block-size" && prefill.flags[block] == "": // TensorRT-LLM
		return
	}
	same(t, "type of the KV cache", prefill.flags["kv-cache-dtype"], decode.flags["kv-cache-dtype"])
	if block == "page-size" {
		sglangAgrees(t, prefill, decode, sidecar)
		return
	}
	same(t, "model", prefill.operands[0], decode.operands[0])
	same(t, "keep-alive", prefill.env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"], decode.env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"])
	vllmAgrees(t, prefill, decode, sidecar)
	r.encodersAgree(t, sidecar)
}

// encodersAgree holds that encoders write encodings where the other engines read them, and hand over nothing else.
func (r parts) encodersAgree(t *testing.T, sidecar commandLine) {
	t.Helper()
	encoder, has := r.run["encode"]
	if !has {
		if connector, told := sidecar.flags["ec-connector"]; told {
			t.Errorf("sidecars have the encoder connector %q, and there are no encoders", connector)
		}
		return
	}
	same(t, "encoder connector", sidecar.flags["ec-connector"], "ec-example")
	if _, hands := encoder["engine"].flags["kv-transfer-config"]; hands {
		t.Error("an encoder has a connector for KV caches")
	}
	for component, role := range map[string]string{"encode": "ec_producer", "prefill": "ec_consumer", "decode": "ec_consumer"} {
		same(t, "encodings of "+component, r.run[component]["engine"].flags["ec-transfer-config"],
			`{"ec_connector":"ECExampleConnector","ec_connector_extra_config":{"shared_storage_path":"/encodings"},"ec_role":"`+role+`"}`)
		claims := ""
		volumes, _, _ := unstructured.NestedSlice(r.pods[component].Object, "spec", "volumes")
		for _, v := range volumes {
			if volume := v.(map[string]any); volume["name"] == "encodings" {
				claims = fmt.Sprint(volume["persistentVolumeClaim"], volume["hostPath"])
			}
		}
		same(t, "folder of "+component, claims, "map[claimName:encodings] <nil>")
	}
}

// transferConfig is vLLM's --kv-transfer-config.
type transferConfig struct {
	Connector string `json:"kv_connector"`
	Role      string `json:"kv_role"`
	Extra     struct {
		Lease      int              `json:"kv_lease_duration"`
		Folder     string           `json:"shared_storage_path"`
		Connectors []transferConfig `json:"connectors"`
	} `json:"kv_connector_extra_config"`
}

// vllmAgrees holds what vLLM's engines and sidecars know of each other: the connector and its roles, the lease, the ports at which
// sidecars and other engines find an engine, and the folder.
func vllmAgrees(t *testing.T, prefill, decode, sidecar commandLine) {
	t.Helper()
	protocol := sidecar.flags["kv-connector"]
	for engine, role := range map[*commandLine]string{&prefill: "kv_producer", &decode: "kv_consumer"} {
		var transfer transferConfig
		if err := json.Unmarshal([]byte(engine.flags["kv-transfer-config"]), &transfer); err != nil {
			t.Fatal(err)
		}
		first := append(slices.Clone(transfer.Extra.Connectors), transfer)[0] // that of several which has parameters
		if row, known := dialect.FindConnector(first.Connector); !known || row.Name != protocol {
			t.Errorf("engines have %s, sidecars speak %s", first.Connector, protocol)
		}
		for _, c := range append(transfer.Extra.Connectors, transfer) {
			switch c.Connector {
			case "NixlConnector", "NixlPushConnector":
				same(t, "lease", fmt.Sprintf("%ds", c.Extra.Lease), sidecar.flags["lease"])
				same(t, "role", c.Role, role)
			case "MooncakeConnector", "MoRIIOConnector":
				same(t, "role", c.Role, role)
			case "ExampleConnector":
				same(t, "folder", c.Extra.Folder, "/kv")
				same(t, "longest prompt and step", engine.flags["max-model-len"], engine.flags["max-num-batched-tokens"])
			}
		}
	}
	switch protocol {
	case "mooncake":
		same(t, "bootstrap port", prefill.env["VLLM_MOONCAKE_BOOTSTRAP_PORT"], sidecar.flags["mooncake-bootstrap-port"])
		for _, engine := range []commandLine{prefill, decode} {
			same(t, "how long legs wait for each other", engine.env["VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"]+"s", sidecar.flags["prefill-timeout"])
		}
	case "moriio":
		same(t, "ranks", prefill.flags["tensor-parallel-size"], decode.flags["tensor-parallel-size"], sidecar.flags["moriio-tp-size"])
	case "offloading":
		same(t, "port of the tier", prefill.env["VLLM_P2P_SIDE_CHANNEL_PORT"], decode.env["VLLM_P2P_SIDE_CHANNEL_PORT"], sidecar.flags["p2p-connector-port"])
		same(t, "seed of hashes", prefill.env["PYTHONHASHSEED"], decode.env["PYTHONHASHSEED"])
	}
}

// sglangAgrees holds what SGLang's engines and sidecars know of each other. An engine must stop waiting for the other one of its
// pair before the sidecar ends the leg.
func sglangAgrees(t *testing.T, prefill, decode, sidecar commandLine) {
	t.Helper()
	same(t, "model", prefill.flags["model-path"], decode.flags["model-path"])
	same(t, "protocol", sidecar.flags["kv-connector"], "sglang")
	same(t, "transfer backend", prefill.flags["disaggregation-transfer-backend"], decode.flags["disaggregation-transfer-backend"])
	for _, variable := range []string{"SGLANG_TIMEOUT_KEEP_ALIVE", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"} {
		same(t, variable, prefill.env[variable], decode.env[variable])
	}
	for role, engine := range map[string]commandLine{"prefill": prefill, "decode": decode} {
		same(t, "mode", engine.flags["disaggregation-mode"], role)
		waits := duration(t, engine.env["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"]+"s")
		if leg := duration(t, sidecar.flags["prefill-timeout"]); waits >= leg {
			t.Errorf("the %s engine waits for %v, the sidecar for %v", role, waits, leg)
		}
	}
}

// trtllmConfig is the file of an engine of TensorRT-LLM.
type trtllmConfig struct {
	Transceiver struct {
		Backend string `yaml:"backend"`
		Runtime string `yaml:"transceiver_runtime"`
		Timeout int    `yaml:"kv_transfer_timeout_ms"`
	} `yaml:"cache_transceiver_config"`
	Cache struct {
		Tokens int    `yaml:"tokens_per_block"`
		Type   string `yaml:"dtype"`
	} `yaml:"kv_cache_config"`
	Metrics    bool `yaml:"return_perf_metrics"`
	Statistics bool `yaml:"enable_iter_perf_stats"`
	NoOverlap  bool `yaml:"disable_overlap_scheduler"`
}

// trtllmAgrees holds what TensorRT-LLM's engines, sidecars and scrapers know of each other, and returns the size of a block in tokens. If
// an engine gets its leg before the other one has answered, it must wait as long as the sidecar does.
func (r parts) trtllmAgrees(t *testing.T, prefill, decode, sidecar commandLine) string {
	t.Helper()
	same(t, "model", prefill.operands[0], decode.operands[0])
	waits := map[string]string{"trtllm": "lease", "trtllm-generation-first": "prefill-timeout"}[sidecar.flags["kv-connector"]]
	var files []trtllmConfig
	for _, role := range []string{"prefill", "decode"} {
		var file trtllmConfig
		if err := yaml.Unmarshal([]byte(data(t, r.all.named(t, "ConfigMap", "-"+role), "config.yaml")), &file); err != nil {
			t.Fatal(err)
		}
		same(t, "how long a KV cache is waited for", fmt.Sprintf("%ds", file.Transceiver.Timeout/1000), sidecar.flags[waits])
		if file.NoOverlap != (role == "prefill") || !file.Metrics || !file.Statistics {
			t.Errorf("the file of %s is %+v", role, file)
		}
		same(t, "engine", r.pods[role].GetLabels()["llm-d.ai/engine-type"], "trtllm-serve")
		monitor, err := json.Marshal(r.all.named(t, "PodMonitor", "-"+role).Object["spec"])
		if err != nil || !strings.Contains(string(monitor), `"path":"/prometheus/metrics"`) {
			t.Errorf("the monitor of %s is %s, %v", role, monitor, err)
		}
		files = append(files, file)
	}
	same(t, "transport", fmt.Sprint(files[0].Transceiver), fmt.Sprint(files[1].Transceiver))
	same(t, "type of the KV cache", files[0].Cache.Type, files[1].Cache.Type)
	same(t, "block size of the engines", strconv.Itoa(files[0].Cache.Tokens), strconv.Itoa(files[1].Cache.Tokens))
	if first := files[0].Transceiver.Runtime == "PYTHON"; first != (waits == "prefill-timeout") {
		t.Errorf("the transceiver's runtime is %q, sidecars speak %s", files[0].Transceiver.Runtime, sidecar.flags["kv-connector"])
	}
	return strconv.Itoa(files[0].Cache.Tokens)
}

// selectorsAgree holds that the picker, and the gateway, find both roles and nothing else.
func (r parts) selectorsAgree(t *testing.T) {
	t.Helper()
	var selectors []labels.Selector
	if text, ok := r.run["epp"]["epp"].flags["endpoint-selector"]; ok {
		s, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		selectors = append(selectors, s)
	}
	for _, pool := range r.all.of("InferencePool") {
		match, _, err := unstructured.NestedStringMap(pool.Object, "spec", "selector", "matchLabels")
		if err != nil {
			t.Fatal(err)
		}
		selectors = append(selectors, labels.SelectorFromSet(match))
	}
	if len(selectors) == 0 {
		t.Fatal("nothing selects pods")
	}
	for _, s := range selectors {
		for component, pod := range r.pods {
			role := pod.GetLabels()["llm-d.ai/role"]
			if found := s.Matches(labels.Set(pod.GetLabels())); found != (role != "") {
				t.Errorf("%v finds the pods of %s: %t", s, component, found)
			}
			if role != "" && role != component {
				t.Errorf("the pods of %s have the role %s", component, role)
			}
		}
	}
}

// scalersAgree holds that an autoscaler asks for the series of this release's pickers as Prometheus labels them, or this release's pickers
// at a port where they answer.
func (r parts) scalersAgree(t *testing.T) {
	t.Helper()
	for _, scaler := range slices.Concat(r.all.of("HorizontalPodAutoscaler"), r.all.of("ScaledObject")) {
		text, err := json.Marshal(scaler.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		service := r.all.named(t, "Service", "-epp").GetName()
		if strings.Contains(string(text), `"external-push"`) {
			address := regexp.MustCompile(`"scalerAddress":"([^"]*)"`).FindStringSubmatch(string(text))
			if want := service + "." + scaler.GetNamespace() + ".svc:9006"; address == nil || address[1] != want {
				t.Errorf("KEDA asks %v, want %s", address, want)
			}
			if role := scaler.GetLabels()["app.kubernetes.io/component"]; !strings.Contains(string(text), `"role":"`+role+`"`) {
				t.Errorf("%s asks for the size of another role: %s", scaler.GetName(), text)
			}
			if at := r.run["epp"]["epp"].flags["scaler-address"]; at != ":9006" {
				t.Errorf("the picker answers KEDA at %q", at)
			}
			continue
		}
		monitor, err := json.Marshal(r.all.named(t, "PodMonitor", "-epp").Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		asked := strings.Contains(string(text), `"service":"`+service+`"`) || strings.Contains(string(text), `service=\"`+service+`\"`)
		given := strings.Contains(string(monitor), `"replacement":"`+service+`"`)
		if !asked || !given {
			t.Errorf("the autoscaler asks for %s, the monitor gives %s", text, monitor)
		}
	}
}

// endsAgree holds that a pod has the time that its parts may take to end, one after the other.
func (r parts) endsAgree(t *testing.T) {
	t.Helper()
	for component, pod := range r.pods {
		if component == "test" {
			continue // it serves nothing
		}
		grace, _, err := unstructured.NestedInt64(pod.Object, "spec", "terminationGracePeriodSeconds")
		if err != nil {
			t.Fatal(err)
		}
		var hook, engine, others time.Duration
		for name, line := range r.run[component] {
			if timeout, ok := line.hook["timeout"]; ok {
				hook = max(hook, duration(t, timeout))
			}
			if seconds, ok := line.flags["shutdown-timeout"]; ok {
				engine = duration(t, seconds+"s")
			}
			if timeout, ok := line.flags["drain-timeout"]; ok && name != "engine" {
				others = max(others, duration(t, timeout))
			}
		}
		if need := hook + engine + others; need == 0 || need > time.Duration(grace)*time.Second {
			t.Errorf("pods of %s have %ds to end, and their parts take %v", component, grace, need)
		}
	}
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
