package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/kube"
	"github.com/tandem-serving/tandem/e2e/kube/container"
	"github.com/tandem-serving/tandem/e2e/kube/kubelet"
	"github.com/tandem-serving/tandem/pd"
)

const (
	// vllmTimeout bounds the start of two engines: a minute and a half on two processors that do nothing else.
	vllmTimeout = "6m"
	// vllmThreshold is epp.threshold of testdata/vllm-cpu.yaml.
	vllmThreshold = 2048
	// vllmNode is a node of its own, which alone has vLLM's image.
	vllmNode = "node-vllm"
)

// scenarioVLLM: a user installs the preset for vLLM with one prefill and one decode engine. The engines are real, on CPU.
// What the pair answers, through Envoy, is what the prefill engine answers when it is asked by itself.
var scenarioVLLM = scenario{name: "vllm", local: "has an image of vLLM's CPU engine and a tiny model",
	limit: 8 * time.Minute,
	run: func(t *testing.T, r *run) {
		r.startVLLMNode(t)
		// As the preset says. The engine has no use for it: its model is in the image.
		r.mustKubectl(t, "create", "secret", "generic", "hf-token", "-n", namespace, "--from-literal=HF_TOKEN=none")
		rel := &release{c: r.cluster, name: "tiny", namespace: namespace, preset: chart + "/values-vllm-1p1d.yaml",
			serves: container.VLLMModel}
		args := []string{"install", rel.name, chart, "-n", namespace, "-f", imagesFile, "-f", rel.preset, "-f", "testdata/vllm-cpu.yaml",
			"--wait", "--timeout", vllmTimeout}
		began := time.Now()
		if out, err := r.helm(r.ctx, t, args...); err != nil {
			t.Fatalf("%v\n%s\n%s\n%s", err, out, rel.state(r.ctx), r.engineLogs(rel))
		}
		r.saw("one prefill and one decode engine ready after %v", time.Since(began).Round(time.Second))
		before := r.holdings(t, rel)
		moved := r.transferred(t, rel)

		pair := newVLLMPair(t, r, rel)
		pair.mustAgree(t)
		if now := r.transferred(t, rel); now <= moved {
			t.Errorf("the decode engine has read %v bytes of KV cache, and before it %v", now, moved)
		} else {
			r.saw("the decode engine read %.0f bytes of KV cache over NIXL", now-moved)
		}
		r.mustBeIdle(t, rel, before)
		(&doctor{r: r, release: rel.name, path: buildTandem(t)}).mustBeWell(t)
		r.saw("tandem doctor --probe finds nothing wrong with it")
		rel.uninstall(t, r)
	}}

// startVLLMNode starts a node that has vLLM's image too. It is gone when the scenario ends.
func (r *run) startVLLMNode(t *testing.T) {
	t.Helper()
	images := container.VLLM(t)
	maps.Copy(images, r.local.images)
	node, err := kubelet.Start(r.ctx, kubelet.Options{
		Name: vllmNode, Address: netip.MustParseAddr("10.244.0.31"), Config: r.config, Host: r.local.host, Images: images,
		Dir:    t.TempDir(),
		Labels: map[string]string{"tandem-e2e/engine": "vllm"}, Nameservers: []string{kube.DNS}, Domain: kube.Domain,
		APIServer: "10.0.0.1:443", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		node.Stop()
		if _, err := r.kubectl(context.Background(), "", "delete", "node", vllmNode); err != nil {
			t.Error(err)
		}
	})
}

// vllmPair is asked in two ways: through Envoy, and its prefill engine by itself.
type vllmPair struct {
	r       *run
	rel     *release
	prefill string // host:port of the engine
	random  *rand.Rand
}

func newVLLMPair(t *testing.T, r *run, rel *release) *vllmPair {
	t.Helper()
	pods := rel.readyPods(r.ctx, t, "prefill")
	if len(pods) != 1 {
		t.Fatalf("there is to be one prefill pod: %s", podNames(pods))
	}
	return &vllmPair{r: r, rel: rel, prefill: net.JoinHostPort(pods[0].Status.PodIP, strconv.Itoa(enginePort)),
		random: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 5))}
}

// mustAgree asks with prompts on both sides of the threshold, and with each mode.
func (p *vllmPair) mustAgree(t *testing.T) {
	t.Helper()
	n := tally{}
	for _, c := range []struct {
		mode   string
		length int
		want   pd.Result
	}{
		{"", vllmThreshold / 8, pd.Result{Verdict: pd.Local, Reason: pd.ShortPrompt}},
		{"", vllmThreshold + 300, pd.Result{Verdict: pd.Remote, Reason: pd.Uncached}},
		{"force", vllmThreshold / 4, pd.Result{Verdict: pd.Remote, Reason: pd.Forced}},
		{"bypass", vllmThreshold + 300, pd.Result{Verdict: pd.Local, Reason: pd.Bypassed}},
	} {
		for _, stream := range []bool{false, true} {
			q := call{api: pd.APICompletions, stream: stream, prompt: drawTokens(p.random, c.length), tokens: 24}
			if c.mode != "" {
				q.header = map[string]string{pd.HeaderMode: c.mode}
			}
			got, want := p.r.ask(t, p.rel, q), p.alone(t, q)
			if got.Status != http.StatusOK || !slices.Equal(got.Tokens, want) {
				t.Errorf("%d tokens, %q, stream %v: status %d, tokens %v, the prefill engine alone gives %v; %s", c.length, c.mode,
					stream,
					got.Status, got.Tokens, want, got.Body)
				continue
			}
			if plain(got.Decision) != plain(c.want) {
				t.Errorf("%d tokens, %q, stream %v: %q, want %q", c.length, c.mode, stream, plain(got.Decision), plain(c.want))
			}
			if n.right++; got.Decision.Verdict == pd.Remote {
				n.remote++
			}
		}
	}
	p.r.row.add(n)
	p.r.saw("%d greedy answers through Envoy are those of the prefill engine alone, token by token; %d were prefilled remotely",
		n.right, n.remote)
}

// alone returns the answer of the prefill engine for a request whose KV is not to be read.
func (p *vllmPair) alone(t *testing.T, c call) []int {
	t.Helper()
	c.stream, c.header = false, nil
	got, err := c.over(p.r.ctx, plainTransport, p.prefill, p.rel.serves)
	if err != nil || got.Status != http.StatusOK || len(got.Tokens) != c.tokens {
		t.Fatalf("asking the prefill engine alone: status %d, %d tokens, %v %s", got.Status, len(got.Tokens), err, got.Body)
	}
	return got.Tokens
}

// transferred returns how many bytes of KV cache the decode engine has read from others.
func (r *run) transferred(t *testing.T, rel *release) float64 {
	t.Helper()
	pods := rel.readyPods(r.ctx, t, "decode")
	if len(pods) != 1 {
		t.Fatalf("there is to be one decode pod: %s", podNames(pods))
	}
	page, err := r.page(r.ctx, namespace, pods[0].Name, enginePort, "metrics")
	if err != nil {
		t.Fatal(err)
	}
	return sum(page, "vllm:nixl_bytes_transferred_sum")
}

// engineLogs returns the last lines of both engines, for a start that fails.
func (r *run) engineLogs(rel *release) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 20*time.Second)
	defer cancel()
	text := ""
	for _, component := range []string{"prefill", "decode"} {
		out, err := r.kubectl(ctx, "", "logs", "deployment/"+rel.object(component), "-c", "engine", "-n", namespace, "--tail=60")
		text += fmt.Sprintf("%s:\n%s%v\n", component, out, err)
	}
	return text
}
