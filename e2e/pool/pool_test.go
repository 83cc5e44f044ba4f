package pool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/tandem-serving/tandem/e2e/controlplane"
	"github.com/tandem-serving/tandem/e2e/harness"
	procclient "github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/stack"
)

const (
	clusterPods = 2000
	// replacements is how many pods are replaced one after the other while the picker is measured, in churnLanes at once.
	replacements = 400
	churnLanes   = 4
)

// TestCluster has the picker follow an InferencePool of 2,000 pods on a real API server, as a pod of the least rights
// would: while pods come and go, while the API server is away and its history is cut off, and while the pool itself is.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	epp := c.startPicker(t)
	var state harness.PoolState
	c.eventually(t, "all pods are candidates", func() (string, bool) {
		state = c.known(t, epp)
		return strconv.Itoa(len(state.Endpoints)), len(state.Endpoints) == clusterPods
	})
	if roles := count(state); roles["prefill"] != clusterPods/2 || roles["decode"] != clusterPods/2 {
		t.Errorf("roles %v", roles)
	}
	t.Run("pods become ready and not", func(t *testing.T) { c.flicker(t, epp) })
	t.Run("pods come and go", func(t *testing.T) { c.churn(t, epp) })
	t.Run("the API server is away", func(t *testing.T) { c.outage(t, epp) })
	t.Run("the pool is deleted and made again", func(t *testing.T) { c.withoutPool(t, epp) })
	cpu, rss := harness.CPUOf(t, epp.PID()), harness.PeakOf(t, epp.PID())
	t.Logf("the picker in all: %v CPU, peak RSS %d MiB", cpu, rss)
}

// cluster is a namespace with a pool of pods, all of which serve a metrics page.
type cluster struct {
	plane  *controlplane.Plane
	pods   corev1client.PodInterface
	port   int
	addrs  []string // one for each pod
	asking *procclient.Conn
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{plane: controlplane.Start(t)}
	c.plane.InstallCRDs("../../epp/kube/testdata/crds/*.yaml")
	c.pods = controlplane.Client(t, c.plane.Config()).CoreV1().Pods("default")
	c.listen(t)
	c.makePool(t)
	c.inLanes(t, 16, clusterPods, func(i int) {
		if err := c.makePod(t.Context(), fmt.Sprintf("pod-%d", i), i); err != nil {
			t.Error(err)
		}
	})
	return c
}

// listen serves the metrics page of an idle engine at the address of every pod: all of 127.0.0.0/8 is this machine.
func (c *cluster) listen(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile("../../epp/pool/page/testdata/vllm-idle.txt")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) })}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = server.Close(); serving.Wait() })
	for i := range clusterPods {
		addr := fmt.Sprintf("127.7.%d.%d", i/200, i%200+1)
		l, err := net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(c.port)))
		if err != nil {
			t.Fatal(err)
		}
		c.port = l.Addr().(*net.TCPAddr).Port
		c.addrs = append(c.addrs, addr)
		serving.Go(func() { _ = server.Serve(l) })
	}
}

func (c *cluster) makePool(t *testing.T) {
	t.Helper()
	c.kubectl(t, fmt.Sprintf(`
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: tandem}
spec:
  selector: {matchLabels: {app: engine}}
  targetPorts: [{number: %d}]
  endpointPickerRef: {name: epp, port: {number: 9002}}`, c.port), "apply", "-f", "-")
}

func (c *cluster) kubectl(t *testing.T, stdin string, args ...string) {
	t.Helper()
	if _, err := c.plane.Kubectl(t.Context(), stdin, args...); err != nil {
		t.Fatal(err)
	}
}

// makePod makes a pod with the address of a number, of prefill and decode by turns, and has it become ready.
func (c *cluster) makePod(ctx context.Context, name string, number int) error {
	role := []string{"prefill", "decode"}[number%2]
	pod, err := c.pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "engine", "llm-d.ai/role": role}},
		Spec: corev1.PodSpec{NodeName: "node", TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "engine", Image: "engine"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: c.addrs[number], PodIPs: []corev1.PodIP{{IP: c.addrs[number]}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	_, err = c.pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// inLanes does n things, some at once.
func (c *cluster) inLanes(t *testing.T, lanes, n int, do func(i int)) {
	t.Helper()
	work := make(chan int)
	var working sync.WaitGroup
	for range lanes {
		working.Go(func() {
			for i := range work {
				do(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	working.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// startPicker runs the picker with the rights of a role that has what the picker needs, and no more.
func (c *cluster) startPicker(t *testing.T) harness.Program {
	t.Helper()
	role, err := os.ReadFile("../../epp/kube/testdata/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, string(role), "apply", "-n", "default", "-f", "-")
	_, kubeconfig := c.plane.As(t.Context(), "default", "picker")
	began := time.Now()
	what := stack.EPP(harness.BinDir, "--kubeconfig="+kubeconfig, "--pool-name=tandem", "--pool-namespace=default")
	what.ReadyTimeout = harness.Patience
	epp := harness.Start(t, what)
	cpu, rss := harness.CPUOf(t, epp.PID()), harness.PeakOf(t, epp.PID())
	t.Logf("%d pods: the picker was ready after %v, with %v CPU and %d MiB", clusterPods, time.Since(began).Round(time.Millisecond),
		cpu, rss)
	c.asking, err = procclient.Dial(procclient.Options{Addresses: []string{epp.Addr("extproc")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.asking.Close() })
	return epp
}

func (c *cluster) known(t *testing.T, epp harness.Program) harness.PoolState {
	t.Helper()
	state, err := harness.EndpointsOf(epp)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func count(state harness.PoolState) map[string]int {
	roles := make(map[string]int)
	for _, e := range state.Endpoints {
		roles[e.Role]++
	}
	return roles
}

func (c *cluster) eventually(t *testing.T, what string, check func() (seen string, ok bool)) {
	t.Helper()
	(&harness.Fleet{}).Eventually(t, what, check)
}

// picked asks the picker for a decode endpoint among the given ones; "" if none of them is a candidate.
func (c *cluster) picked(ctx context.Context, among ...string) (string, error) {
	stream, err := c.asking.Open(ctx, procclient.Single())
	if err != nil {
		return "", err
	}
	defer stream.Close()
	head := procclient.RequestHead{Method: http.MethodPost, Scheme: "http", Authority: "pool", Path: "/v1/completions",
		Header: http.Header{"Content-Type": {"application/json"}}, Subset: among}
	if err := errors.Join(stream.RequestHeaders(head, false), stream.RequestBody([]byte(`{"model":"m","prompt":"p"}`), true)); err != nil {
		return "", err
	}
	answer, err := stream.Recv()
	switch {
	case err != nil:
		return "", err
	case answer.Kind == procclient.Immediate && answer.Reply.Status == http.StatusServiceUnavailable:
		return "", nil
	case answer.Kind == procclient.Immediate:
		return "", fmt.Errorf("status %d", answer.Reply.Status)
	}
	return answer.Endpoints, nil
}

// untilPicked asks every few milliseconds until the picker picks an address, or does not any more.
func (c *cluster) untilPicked(ctx context.Context, addr string, want bool) error {
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		got, err := c.picked(ctx, addr)
		if err != nil {
			return err
		}
		if (got != "") == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is a candidate: %t, want %t", addr, !want, want)
		case <-poll.C:
		}
	}
}

// flicker makes prefill pods not ready and ready again, and reports what it costs a picker without requests; what it costs to
// read the pages of all pods is told beside it.
func (c *cluster) flicker(t *testing.T, epp harness.Program) {
	ctx := harness.Within(t)
	share := func(what func()) float64 {
		began, before := time.Now(), harness.CPUOf(t, epp.PID())
		what()
		return (harness.CPUOf(t, epp.PID()) - before).Seconds() / time.Since(began).Seconds()
	}
	resting := share(func() {
		rest := time.NewTimer(3 * time.Second)
		defer rest.Stop()
		<-rest.C
	})
	began := time.Now()
	busy := share(func() {
		c.inLanes(t, churnLanes, replacements, func(i int) {
			name := fmt.Sprintf("pod-%d", i*2) // prefill
			if err := errors.Join(c.setReady(ctx, name, corev1.ConditionFalse), c.setReady(ctx, name, corev1.ConditionTrue)); err != nil {
				t.Error(err)
			}
		})
	})
	took := time.Since(began)
	rss := harness.PeakOf(t, epp.PID())
	t.Logf("%.0f changes/s for %v: the picker took %.3f of a core, %.3f before it; peak RSS %d MiB", float64(2*replacements)/took.Seconds(),
		took.Round(time.Millisecond), busy, resting, rss)
	c.mustBe(t, epp)
}

func (c *cluster) setReady(ctx context.Context, name string, ready corev1.ConditionStatus) error {
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, ready)
	_, err := c.pods.Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// churn replaces decode pods by others at the same address, and tells how long it takes until the picker knows, and what
// that costs it.
func (c *cluster) churn(t *testing.T, epp harness.Program) {
	port := strconv.Itoa(c.port)
	var mu sync.Mutex
	var came, left []time.Duration
	ctx, cancel := context.WithTimeout(t.Context(), 3*harness.Patience) // the API server is what computes
	defer cancel()
	began, before := time.Now(), harness.CPUOf(t, epp.PID())
	c.inLanes(t, churnLanes, replacements, func(i int) {
		number := i*2 + 1 // decode
		addr := net.JoinHostPort(c.addrs[number], port)
		gone := time.Now()
		if err := c.pods.Delete(ctx, fmt.Sprintf("pod-%d", number), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
			return
		}
		if err := c.untilPicked(ctx, addr, false); err != nil {
			t.Error(err)
			return
		}
		ready := time.Now()
		if err := errors.Join(c.makePod(ctx, fmt.Sprintf("new-%d", number), number), c.untilPicked(ctx, addr, true)); err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		left, came = append(left, ready.Sub(gone)), append(came, time.Since(ready))
	})
	took := time.Since(began)
	rss := harness.PeakOf(t, epp.PID())
	t.Logf("%d replacements in %v (%.0f changes/s): made ready → candidate p50 %v p99 %v, deleted → none p50 %v p99 %v, "+
		"API calls included; the picker took %.2f of a core, with all the asking, peak RSS %d MiB", replacements, took.Round(time.Millisecond),
		float64(3*replacements)/took.Seconds(), harness.Quantile(came, 0.5), harness.Quantile(came, 0.99), harness.Quantile(left, 0.5), harness.Quantile(left, 0.99),
		(harness.CPUOf(t, epp.PID())-before).Seconds()/took.Seconds(), rss)
	c.mustBe(t, epp)
}

// mustBe fails unless the picker comes to know just the pods that there are.
func (c *cluster) mustBe(t *testing.T, epp harness.Program) {
	t.Helper()
	list, err := c.pods.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := make([]string, 0, len(list.Items))
	for _, pod := range list.Items {
		want = append(want, pod.Name)
	}
	slices.Sort(want)
	c.eventually(t, "the picker knows the pods that there are", func() (string, bool) {
		var got []string
		for _, e := range c.known(t, epp).Endpoints {
			_, name, _ := strings.Cut(e.Name, "/")
			got = append(got, strings.TrimSuffix(name, "-rank-0"))
		}
		slices.Sort(got)
		return fmt.Sprintf("%d, others among them", len(got)), slices.Equal(got, want)
	})
}

// outage takes the API server away, and its history with it: what the picker knows stays, and what changes meanwhile it
// learns afterwards.
func (c *cluster) outage(t *testing.T, epp harness.Program) {
	ctx := harness.Within(t)
	state := c.known(t, epp)
	c.plane.StopAPIServer()
	for range 100 {
		if got, err := c.picked(ctx); err != nil || got == "" {
			t.Fatalf("without an API server the picker picks %q: %v", got, err)
		}
	}
	if now := c.known(t, epp); len(now.Endpoints) != len(state.Endpoints) {
		t.Errorf("without an API server %d endpoints are left of %d", len(now.Endpoints), len(state.Endpoints))
	}
	if code, text := harness.FetchPage(t, "http://"+epp.Addr("metrics")+"/livez"); code != http.StatusOK {
		t.Errorf("without an API server the picker does not live: %d %s", code, text)
	}
	if err := c.plane.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	// Changes that the picker's watch, which comes back with some delay, has to catch up with from before the cut.
	for i := range 50 {
		number := (replacements+i)*2 + 1
		if err := c.pods.Delete(ctx, fmt.Sprintf("pod-%d", number), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.plane.CompactEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	c.plane.StopAPIServer()
	if err := c.plane.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	c.mustBe(t, epp)
}

// withoutPool: requests are refused with a reason while there is no pool, and served again when there is one.
func (c *cluster) withoutPool(t *testing.T, epp harness.Program) {
	ctx := harness.Within(t)
	c.kubectl(t, "", "delete", "inferencepool.inference.networking.k8s.io", "tandem")
	c.eventually(t, "without a pool there are no candidates", func() (string, bool) {
		got, err := c.picked(ctx)
		return fmt.Sprint(got, err), got == "" && err == nil
	})
	if _, text := harness.FetchPage(t, "http://"+epp.Addr("metrics")+"/readyz"); !strings.Contains(text, "InferencePool") {
		t.Errorf("/readyz does not tell that there is no InferencePool: %s", text)
	}
	c.makePool(t)
	c.mustBe(t, epp)
	if got, err := c.picked(ctx); err != nil || got == "" {
		t.Errorf("with the pool again the picker picks %q: %v", got, err)
	}
}
