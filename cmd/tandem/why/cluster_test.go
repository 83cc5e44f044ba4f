package why

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// apiServer is an API server that lists pods and forwards their ports, over SPDY, to programs of the test.
type apiServer struct {
	pods []corev1.Pod
	to   map[string]string // "pod:port" → address; nothing listens at others
	url  string

	mu       sync.Mutex
	asked    []string // pods whose ports were forwarded
	selector string   // of the list
}

func startAPIServer(t *testing.T, pods []corev1.Pod, to map[string]string) *apiServer {
	t.Helper()
	a := &apiServer{pods: pods, to: to}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/namespaces/models/pods", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.selector = r.URL.Query().Get("labelSelector")
		a.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: a.pods}) // the client may have left
	})
	mux.HandleFunc("POST /api/v1/namespaces/models/pods/{pod}/portforward", func(w http.ResponseWriter, r *http.Request) { a.forward(t, w, r) })
	s := httptest.NewServer(mux) // it does not know WebSocket, so the command must fall back to SPDY
	t.Cleanup(s.Close)
	a.url = s.URL
	return a
}

// forward does what the kubelet does: of each pair of streams, one has the port's bytes, and the other why that does not work.
func (a *apiServer) forward(t *testing.T, w http.ResponseWriter, r *http.Request) {
	pod := r.PathValue("pod")
	a.mu.Lock()
	a.asked = append(a.asked, pod)
	a.mu.Unlock()
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		t.Error(err)
		return
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		t.Error("the connection was not upgraded")
		return
	}
	defer conn.Close()
	failures, data := <-streams, <-streams
	port := data.Headers().Get(corev1.PortHeader)
	program, err := net.Dial("tcp", a.to[pod+":"+port])
	if err != nil {
		_, _ = fmt.Fprintf(failures, "nothing listens at port %s", port) // the client sees that the stream ends
		failures.Close()
		data.Close()
		<-conn.CloseChan()
		return
	}
	defer program.Close()
	var copying sync.WaitGroup
	copying.Go(func() { _, _ = io.Copy(program, data) })
	_, _ = io.Copy(data, program)
	data.Close()
	failures.Close()
	<-conn.CloseChan()
	copying.Wait()
}

// kubeconfig writes a file that leads to the server.
func (a *apiServer) kubeconfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " + a.url + "}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
		"users: [{name: u, user: {token: secret}}]\ncurrent-context: c\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// running returns a pod with containers, each "name arg …".
func running(name, ip string, labels map[string]string, containers ...string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "models", Labels: labels},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip}}
	for _, c := range containers {
		words := strings.Fields(c)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: words[0], Args: words[1:]})
	}
	return pod
}

func notThere(pod string, port int) string {
	return fmt.Sprintf("%s does not tell: asking its port %d: nothing listens at port %d\n", pod, port, port)
}

// In a cluster, the command finds the programs among the pods, and asks no more sidecars than it must.
func TestCluster(t *testing.T) {
	picker := startAdmin(t, pick("r-1", "a", nil))
	pods := []corev1.Pod{
		running("epp-0", "10.0.1.1", map[string]string{componentLabel: "epp"}, "epp"),
		running("decode-0", "10.0.0.2", nil, "engine", "sidecar --admin-address=127.0.0.1:9096"),
		running("decode-1", "10.0.0.3", nil, "engine", "sidecar --admin-address 127.0.0.1:9097"),
		running("decode-2", "10.0.0.4", nil, "engine", "routing-proxy"),
		running("web", "10.0.0.9", nil, "nginx"),
	}
	pods = append(pods, running("decode-3", "10.0.0.5", nil, "sidecar"))
	pods[5].Status.Phase = corev1.PodPending
	for _, c := range []struct {
		name    string
		at      string // the sidecar that remembers the request, as pod:port
		sidecar string // who tells
		stderr  string
		asked   []string
	}{
		{"the picker names its pod", "decode-0:9096", "decode-0", "", []string{"decode-0", "epp-0"}},
		{"another pod has it", "decode-2:9096", "decode-2", notThere("decode-0", 9096) + notThere("decode-1", 9097), []string{"decode-0", "decode-1", "decode-2", "epp-0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := startAPIServer(t, pods, map[string]string{"epp-0:9091": picker, c.at: startAdmin(t, entry{serve("r-1", "a", nil)})})
			out, errs, err := runWith(t, "--namespace=models", "--release=llama", "--kubeconfig="+api.kubeconfig(t), "r-1")
			if err != nil || !strings.Contains(out, "picker    epp-0: remote") || !strings.Contains(out, "sidecar   "+c.sidecar+": remote") {
				t.Errorf("%v: %s\n%s", err, errs, out)
			}
			if errs != c.stderr {
				t.Errorf("it says %q, want %q", errs, c.stderr)
			}
			slices.Sort(api.asked)
			if asked := slices.Compact(api.asked); !slices.Equal(asked, c.asked) {
				t.Errorf("asked %q, want %q", asked, c.asked)
			}
			if api.selector != "app.kubernetes.io/instance=llama" {
				t.Errorf("the pods were selected by %q", api.selector)
			}
		})
	}
}

func TestClusterTroubles(t *testing.T) {
	none := startAPIServer(t, []corev1.Pod{running("web", "10.0.0.9", nil, "nginx")}, nil)
	for _, c := range []struct {
		name, namespace, says string
	}{
		{"no pod of ours", "models", "no pod of namespace models that runs has a picker or a sidecar"},
		{"the pods cannot be read", "others", "reading the pods of the namespace"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := runWith(t, "--namespace="+c.namespace, "--kubeconfig="+none.kubeconfig(t), "r-1")
			exit, ok := err.(boot.Exit)
			if !ok || exit.Code != boot.CodeMissing || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}
