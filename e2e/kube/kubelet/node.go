package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/tandem-serving/tandem/e2e/kube/container"
)

// Options describe a node and its environment.
type Options struct {
	// Name of the Node object, and label kubernetes.io/hostname.
	Name string
	// Address is the node's InternalIP, at which its API server listens, on a port that the system chooses. The network
	// namespace gets it if it is not a loopback address.
	Address netip.Addr
	// Config is for the API server, such as that of a cluster administrator.
	Config *rest.Config
	// Host makes the sandboxes; nodes can share it.
	Host *container.Host
	// Images are all images of the node.
	Images container.Images
	// Dir is the node's folder, for volumes and logs. Like a disk it outlives [Node.Crash], for the next node with this
	// folder.
	Dir string
	// Labels of the Node object besides the usual ones.
	Labels map[string]string
	// Nameservers and Domain are what pods find cluster names by: addresses of DNS servers, and the cluster's domain.
	Nameservers []string
	Domain      string
	// APIServer is host:port for the variables KUBERNETES_SERVICE_*.
	APIServer string
	// Backoff is the pause before the second restart of a container that keeps ending, which doubles up to 5 minutes;
	// default: a kubelet's 10 s.
	Backoff time.Duration
	// Capacity is what the scheduler may assign; default: more than tests request.
	Capacity corev1.ResourceList
	// Log gets the failures on the node; nil: they are not logged.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Backoff == 0 {
		o.Backoff = firstBackoff
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Log = o.Log.With("node", o.Name)
	if o.Capacity == nil {
		o.Capacity = corev1.ResourceList{
			corev1.ResourceCPU:              resource.MustParse("64"),
			corev1.ResourceMemory:           resource.MustParse("512Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
			corev1.ResourcePods:             resource.MustParse("110"), // a kubelet's default
		}
	}
	return o
}

// Node is a running node.
type Node struct {
	options  Options
	client   kubernetes.Interface
	http     *http.Client
	wire     *wire
	server   *server
	recorder record.EventRecorder
	events   record.EventBroadcaster
	known    known

	life  context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup
	halt  sync.Once

	mu      sync.Mutex // guards the fields below
	ended   bool
	workers map[types.UID]*worker
}

// Start registers a node, or restarts a known one, and runs its pods until Stop or Crash. ctx bounds the start only. It
// returns when the node is ready and its pods are known.
func Start(ctx context.Context, o Options) (*Node, error) {
	n := &Node{options: o.withDefaults(), workers: map[types.UID]*worker{}}
	n.life, n.end = context.WithCancel(context.Background())
	if err := n.start(ctx); err != nil {
		n.Stop()
		return nil, fmt.Errorf("starting node %s: %w", o.Name, err)
	}
	return n, nil
}

func (n *Node) start(ctx context.Context) (err error) {
	if err := n.address(ctx, "replace"); err != nil {
		return err
	}
	if n.server, err = serve(n); err != nil {
		return err
	}
	if err := n.connect(); err != nil {
		return err
	}
	if err := n.register(ctx); err != nil {
		return err
	}
	n.tasks.Go(n.heartbeat)
	return n.watch(ctx)
}

// connect makes the clients. All of them speak over the wire that Crash cuts.
func (n *Node) connect() error {
	config := rest.CopyConfig(n.options.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		n.wire = &wire{next: next}
		return n.wire
	})
	var err error
	if n.http, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	if n.client, err = kubernetes.NewForConfigAndClient(config, n.http); err != nil {
		return err
	}
	n.events = record.NewBroadcaster(record.WithContext(n.life))
	n.events.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: n.client.CoreV1().Events("")})
	n.recorder = n.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: n.options.Name})
	return nil
}

// wire is the way to the API server.
type wire struct {
	next http.RoundTripper
	cut  atomic.Bool
}

var errCut = errors.New("the node has no power")

func (w *wire) RoundTrip(request *http.Request) (*http.Response, error) {
	if w.cut.Load() {
		return nil, errCut
	}
	return w.next.RoundTrip(request)
}

// WrappedRoundTripper lets others find the transport whose connections can be closed.
func (w *wire) WrappedRoundTripper() http.RoundTripper { return w.next }

// address adds the node's address to the network namespace, or removes it.
func (n *Node) address(ctx context.Context, verb string) error {
	if n.options.Address.IsLoopback() {
		return nil
	}
	args := []string{"address", verb, n.options.Address.String() + "/32", "dev", "lo"}
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// Stop ends the node and all its containers at once, as at the end of a test, and reports nothing. It may be called again,
// and after Crash.
func (n *Node) Stop() { n.halt.Do(n.stop) }

// Crash simulates a loss of power: the API server gets no more requests of the node, which stays registered, and all its
// containers are killed.
func (n *Node) Crash() {
	n.wire.cut.Store(true)
	n.Stop()
}

func (n *Node) stop() {
	n.mu.Lock()
	n.ended = true
	n.mu.Unlock()
	n.end()
	n.tasks.Wait()
	if n.server != nil {
		n.server.close()
	}
	if n.events != nil {
		n.events.Shutdown()
	}
	if n.http != nil {
		utilnet.CloseIdleConnectionsFor(n.http.Transport)
	}
	if err := n.address(context.Background(), "del"); err != nil {
		n.options.Log.Warn("the address of a node was not released", "error", err)
	}
}

// Container returns a running container; the error says that it does not run.
func (n *Node) Container(namespace, pod, name string) (*container.Container, error) {
	w, err := n.find(namespace, pod)
	if err != nil {
		return nil, err
	}
	w.public.mu.Lock()
	defer w.public.mu.Unlock()
	if c := w.public.running[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("pod %s/%s on node %s: no container %s runs", namespace, pod, n.options.Name, name)
}

// Sandbox returns the sandbox of a pod; the error says that there is none.
func (n *Node) Sandbox(namespace, pod string) (*container.Sandbox, error) {
	w, err := n.find(namespace, pod)
	if err != nil {
		return nil, err
	}
	if s := w.sandbox(); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("pod %s/%s on node %s has no sandbox yet", namespace, pod, n.options.Name)
}

// find returns the pod with a name: of several the newest, since the others are about to be removed.
func (n *Node) find(namespace, pod string) (*worker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var found *worker
	for _, w := range n.workers {
		if w.ref.Namespace == namespace && w.ref.Name == pod && (found == nil || w.born.After(found.born)) {
			found = w
		}
	}
	if found == nil {
		return nil, fmt.Errorf("there is no pod %s/%s on node %s", namespace, pod, n.options.Name)
	}
	return found, nil
}

// sandboxOptions say what the containers of a pod have in common.
func (n *Node) sandboxOptions(pod *corev1.Pod) container.SandboxOptions {
	o := container.SandboxOptions{Name: string(pod.UID), Hostname: hostname(pod)}
	if pod.Spec.DNSPolicy != corev1.DNSNone && pod.Spec.DNSPolicy != corev1.DNSDefault {
		o.Nameservers = append(o.Nameservers, n.options.Nameservers...)
		if d := n.options.Domain; d != "" {
			o.Searches = append(o.Searches, pod.Namespace+".svc."+d, "svc."+d, d)
		}
	}
	if c := pod.Spec.DNSConfig; c != nil {
		o.Nameservers = append(o.Nameservers, c.Nameservers...)
		o.Searches = append(o.Searches, c.Searches...)
	}
	return o
}
