package dropin

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// TestServes: short and long prompts are answered as by an engine alone, streamed and whole, and long ones are split.
func TestServes(t *testing.T) {
	f := startStack(t, 2)
	for _, c := range []struct {
		tokens int
		want   string
	}{
		{harness.Threshold / 2, "local;reason=short-prompt"},
		{2 * harness.Threshold, "remote;reason=uncached;attempts=1;candidate=0"},
	} {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			q := f.TokensCall(c.tokens, stream)
			got := f.Send(t, q)
			harness.MustMatch(t, got, stream, f.Want(t, q))
			if decided := got.Header.Get(pd.HeaderDecision); decided != c.want {
				t.Errorf("%d tokens: %s, want %s", c.tokens, decided, c.want)
			}
		})
	}
	f.MustRest(t)
}

// TestRequestsWithTrailers: the end of such a request comes after its body, in a frame of its own. A picker that waits for the
// end of the body would wait for ever, because Envoy sets no time limit in this mode.
func TestRequestsWithTrailers(t *testing.T) {
	ours := func(t *testing.T, f *harness.Fleet) {
		startPicker(t, f, "--secure-serving=false", "--single-endpoint")
		f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, "--pool=original-dst")
	}
	theirs := func(passed string) func(*testing.T, *harness.Fleet) {
		return func(t *testing.T, f *harness.Fleet) {
			startPicker(t, f)
			startEnvoy(t, f, passed)
		}
	}
	for _, front := range []struct {
		name        string
		start       func(*testing.T, *harness.Fleet)
		refusesLong bool // Envoy would garble a body of several parts
	}{
		{"llm-d's", theirs("false"), false}, {"llm-d's, enable_trailers", theirs("true"), false},
		{"ours, ORIGINAL_DST", ours, true},
	} {
		t.Run(front.name, func(t *testing.T) {
			f := newFleet(t, 1)
			front.start(t, f)
			for name, two := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
				for _, tokens := range []int{harness.Threshold / 2, 2 * harness.Threshold} {
					t.Run(fmt.Sprintf("%s/%d tokens", name, tokens), func(t *testing.T) {
						q := f.TokensCall(tokens, false)
						status, text := sendWithTrailer(t, f, two, q.Body(f.Model))
						if status != http.StatusOK || !strings.Contains(text, `"choices"`) {
							t.Errorf("%d: %s", status, text)
						}
					})
				}
				if front.refusesLong {
					q := f.TokensCall(30_000, false)
					status, text := sendWithTrailer(t, f, two, q.Body(f.Model))
					if status != http.StatusBadRequest || !strings.Contains(text, "Send it without trailers") {
						t.Errorf("%s, a long body: %d: %s", name, status, text)
					}
				}
			}
			f.MustRest(t)
		})
	}
}

// sendWithTrailer sends a body of unknown length with a trailer.
func sendWithTrailer(t *testing.T, f *harness.Fleet, two bool, body []byte) (status int, text string) {
	t.Helper()
	over := new(http.Protocols)
	over.SetHTTP1(!two)
	over.SetUnencryptedHTTP2(two)
	transport := &http.Transport{Protocols: over, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "http://"+f.Front.Addr+pd.APICompletions.Path(),
		io.MultiReader(bytes.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Trailer = http.Header{"X-Checksum": {"1"}}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestForeignPartsSeeNothing: engines, and sidecars that are not ours, get none of our headers, and the shared secret least of
// all. They do get the prefill pod, by the name that llm-d's sidecar reads.
func TestForeignPartsSeeNothing(t *testing.T) {
	const secret = "open-sesame"
	file := filepath.Join(t.TempDir(), "secret")
	harness.Replace(t, file, secret+"\n")
	f := harness.NewTappedFleet(t, 1)
	other := f.Decode[0]
	f.Fleet.Decode = nil
	f.WriteEndpoints(t, other.Addr) // without our sidecar before it
	startPicker(t, f.Fleet, "--auth-file="+file)
	startEnvoy(t, f.Fleet, "true")
	for i, c := range []struct {
		tokens int
		mode   string
		remote bool
	}{
		{2 * harness.Threshold, "", true}, {harness.Threshold / 2, "", false},
		{harness.Threshold / 2, "force", true}, {2 * harness.Threshold, "bypass", false},
	} {
		t.Run(fmt.Sprintf("%d tokens, mode %q", c.tokens, c.mode), func(t *testing.T) {
			q, id := f.TokensCall(c.tokens, false), fmt.Sprintf("request-%d", i)
			q.Header = map[string]string{pd.HeaderRequestID: id, pd.HeaderPlan: "local", pd.HeaderAuth: "guess"}
			if c.mode != "" {
				q.Header[pd.HeaderMode] = c.mode
			}
			if got := f.Send(t, q); got.Status != http.StatusOK {
				t.Fatalf("status %d: %s", got.Status, got.Body)
			}
			seen := other.Tap.Seen(id)
			if len(seen) != 1 {
				t.Fatalf("%d requests reached the pod", len(seen))
			}
			for name, values := range seen[0].Header {
				if text := strings.Join(values, ","); strings.HasPrefix(strings.ToLower(name), "x-tandem-") || strings.Contains(text, secret) {
					t.Errorf("%s: %s", name, text)
				}
			}
			if to := seen[0].Header.Get(pd.HeaderPrefill); (to == f.Prefill[0].Addr) != c.remote || to == "" && c.remote {
				t.Errorf("%s is %q; a prefill pod is to be named: %v", pd.HeaderPrefill, to, c.remote)
			}
		})
	}
}

// TestOurSidecarGetsThePlan: our picker knows our sidecar by the engine's metrics page. The engines behind it see nothing.
func TestOurSidecarGetsThePlan(t *testing.T) {
	f := harness.NewTappedFleet(t, 1)
	file := filepath.Join(t.TempDir(), "secret")
	harness.Replace(t, file, "open-sesame\n")
	f.Fleet.Decode[0].Sidecar = harness.StartSidecar(t, f.Decode[0].Addr, "--auth-file="+file)
	f.WriteEndpoints(t)
	startPicker(t, f.Fleet, "--auth-file="+file)
	startEnvoy(t, f.Fleet, "false")
	q := f.TokensCall(2*harness.Threshold, false)
	q.Header = map[string]string{pd.HeaderRequestID: "planned"}
	got := f.Send(t, q)
	if decided := got.Header.Get(pd.HeaderDecision); decided != "remote;reason=uncached;attempts=1;candidate=0" { // external without a plan
		t.Errorf("%d %s", got.Status, decided)
	}
	for _, tap := range []*harness.Tap{f.Prefill[0].Tap, f.Decode[0].Tap} {
		for _, r := range tap.Seen("planned") {
			for name := range r.Header {
				if pd.Internal(name) {
					t.Errorf("an engine gets %s", name)
				}
			}
		}
	}
}

// TestEveryPrefillPodDies: after the first failures no request is planned remote, and every request is answered.
func TestEveryPrefillPodDies(t *testing.T) {
	f := startStack(t, 2)
	q := f.TokensCall(2*harness.Threshold, false)
	harness.MustMatch(t, f.Send(t, q), false, f.Want(t, q))
	for _, e := range f.Prefill {
		e.Kill(t)
	}
	f.Eventually(t, "decision", func() (string, bool) {
		q := f.TokensCall(2*harness.Threshold, false)
		got := f.Send(t, q)
		harness.MustMatch(t, got, false, f.Want(t, q))
		decided := got.Header.Get(pd.HeaderDecision)
		return decided, decided == "local;reason=no-prefill"
	})
	for range 30 { // more than the fallback budget has
		if got := f.Send(t, f.TokensCall(2*harness.Threshold, false)).Header.Get(pd.HeaderDecision); got != "local;reason=no-prefill" {
			t.Fatal(got)
		}
	}
}
