package doctor

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/pd"
)

// Labels of the chart's objects, which are the usual ones.
const (
	instanceLabel  = "app.kubernetes.io/instance"
	componentLabel = "app.kubernetes.io/component"
)

// cluster is what was found in a namespace.
type cluster struct {
	pods     []corev1.Pod // all of the namespace
	engines  []*corev1.Pod
	pools    []*inferencePool
	pool     *inferencePool // the one of these engines; nil: there is none
	selector labels.Selector
	from     string // who selects
	services []corev1.Service
	trouble  error // why services cannot be seen
	unseen   error // why InferencePools cannot be seen
}

// inferencePool is what of an InferencePool matters here.
type inferencePool struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts []poolPort `json:"targetPorts"`
		Picker      *struct {
			Name string    `json:"name"`
			Kind string    `json:"kind"`
			Port *poolPort `json:"port"`
		} `json:"endpointPickerRef"`
	} `json:"spec"`
}

type poolPort struct {
	Number uint16 `json:"number"`
}

var poolResource = schema.GroupVersionResource{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"}

// fromCluster finds the pods of a pool and of its pickers.
func (f *fleet) fromCluster(ctx context.Context, flags *clusterFlags) error {
	config, err := flags.config()
	if err != nil {
		return boot.Configf("kubeconfig: %w", err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return boot.Configf("kubeconfig: %w", err)
	}
	f.onClose = append(f.onClose, client.CloseIdleConnections)
	c := &cluster{}
	if err := c.list(ctx, config, client, flags.Namespace); err != nil {
		return boot.Missingf("asking the cluster: %w", err)
	}
	if err := c.choose(flags); err != nil {
		return err
	}
	f.cluster = c
	release := c.engines[0].Labels[instanceLabel]
	pickers := c.pickers(release)
	c.choosePool(release)
	c.readSelector(pickers)
	f.addPods(pickers)
	if !flags.direct() {
		if err := f.goThrough(config, client); err != nil {
			return boot.Configf("kubeconfig: %w", err)
		}
	}
	f.addPickers(pickers)
	return nil
}

// config is how the API server is reached.
func (c *clusterFlags) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
}

// direct tells whether pods can be reached at their addresses. Inside of a cluster they can.
func (c *clusterFlags) direct() bool {
	if c.Via != viaAuto {
		return c.Via == viaDirect
	}
	_, err := rest.InClusterConfig()
	return err == nil && c.Kubeconfig == ""
}

// list reads the objects of the namespace. Only the pods are needed in any case.
func (c *cluster) list(ctx context.Context, config *rest.Config, by *http.Client, namespace string) error {
	client, err := kubernetes.NewForConfigAndClient(config, by)
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	c.pods = pods.Items
	services, err := client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		c.trouble = err
	} else {
		c.services = services.Items
	}
	c.unseen = c.listPools(ctx, config, by, namespace)
	return nil
}

// listPools reads the InferencePools, of which there are none where nobody has defined the kind.
func (c *cluster) listPools(ctx context.Context, config *rest.Config, by *http.Client, namespace string) error {
	client, err := dynamic.NewForConfigAndClient(config, by)
	if err != nil {
		return err
	}
	pools, err := client.Resource(poolResource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	for i := range pools.Items {
		p := &inferencePool{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pools.Items[i].Object, p); err != nil {
			return fmt.Errorf("reading the InferencePool %s: %w", pools.Items[i].GetName(), err)
		}
		c.pools = append(c.pools, p)
	}
	return nil
}

// choosePool takes the pool that is labelled as one of this release, else the one that selects most of its engines: a
// selector that fits none is just what should be found.
func (c *cluster) choosePool(release string) {
	most := -1
	for _, p := range c.pools {
		selector, n := labels.SelectorFromSet(p.Spec.Selector.MatchLabels), 0
		for _, pod := range c.engines {
			if selector.Matches(labels.Set(pod.Labels)) {
				n++
			}
		}
		if release != "" && p.Labels[instanceLabel] == release {
			n += len(c.pods)
		}
		if n > most {
			c.pool, most = p, n
		}
	}
}

// choose finds the engines among the pods.
func (c *cluster) choose(flags *clusterFlags) error {
	selector := labels.Everything()
	switch {
	case flags.Release != "":
		selector = labels.SelectorFromSet(labels.Set{instanceLabel: flags.Release})
	case flags.Selector != "":
		var err error
		if selector, err = labels.Parse(flags.Selector); err != nil {
			return boot.Configf("selector: %w", err)
		}
	}
	releases := map[string]bool{}
	for i := range c.pods {
		pod := &c.pods[i]
		_, hasRole := pod.Labels[pd.RoleLabel]
		component := pod.Labels[componentLabel]
		engine := hasRole || component == "prefill" || component == "decode" || flags.Selector != ""
		if engine && pod.DeletionTimestamp == nil && selector.Matches(labels.Set(pod.Labels)) {
			c.engines = append(c.engines, pod)
			releases[pod.Labels[instanceLabel]] = true
		}
	}
	if len(releases) > 1 && flags.Release == "" && flags.Selector == "" {
		return boot.Usagef("the namespace has engines of several releases: name one with --release, or a --selector")
	}
	if len(c.engines) == 0 {
		return boot.Missingf("the namespace %s has no engines: no pod has the label %s, or none fits --release or --selector", flags.Namespace, pd.RoleLabel)
	}
	return nil
}

// pickers are the pods of the picker, as Tandem's chart labels them.
func (c *cluster) pickers(release string) (found []*corev1.Pod) {
	for i := range c.pods {
		pod := &c.pods[i]
		if pod.Labels[componentLabel] == "epp" && pod.Labels[instanceLabel] == release && pod.DeletionTimestamp == nil && pod.Status.PodIP != "" {
			found = append(found, pod)
		}
	}
	return found
}

// readSelector says by which labels the pool selects: those of the InferencePool, or those in a picker's flags.
func (c *cluster) readSelector(pickers []*corev1.Pod) {
	if c.pool != nil {
		c.selector, c.from = labels.SelectorFromSet(c.pool.Spec.Selector.MatchLabels), "the InferencePool "+c.pool.Name
	}
	for _, pod := range pickers {
		if given := argument(pod, "endpoint-selector"); given != "" {
			if selector, err := labels.Parse(given); err == nil {
				c.selector, c.from = selector, "the picker's --endpoint-selector"
			}
		}
	}
}

// addPods makes endpoints of the engines that have an address.
func (f *fleet) addPods(pickers []*corev1.Pod) {
	var given string
	for _, pod := range pickers {
		given = argument(pod, "endpoint-target-ports")
	}
	for _, pod := range f.cluster.engines {
		ip, err := netip.ParseAddr(pod.Status.PodIP)
		if err != nil {
			continue // checkPods tells
		}
		ports := f.cluster.ports(pod, given)
		for i, port := range ports {
			t := &target{name: pod.Name, addr: netip.AddrPortFrom(ip.Unmap(), port), pod: pod, rank: i}
			if len(ports) > 1 {
				t.name = fmt.Sprintf("%s-rank-%d", pod.Name, i)
			}
			t.setRole(pod.Labels[pd.RoleLabel])
			f.targets = append(f.targets, t)
		}
	}
}

// defaultPort is where engines and sidecars serve by default.
const defaultPort = 8000

// ports are those at which a pod serves: the pool's, those in the picker's flags, or the one that the pod calls http.
func (c *cluster) ports(pod *corev1.Pod, given string) (ports []uint16) {
	switch {
	case c.pool != nil && len(c.pool.Spec.TargetPorts) > 0:
		for _, p := range c.pool.Spec.TargetPorts {
			ports = append(ports, p.Number)
		}
	case given != "":
		ports = numbers(given)
	}
	if active := active(pod); active != nil {
		ports = slices.DeleteFunc(ports, func(p uint16) bool { return !slices.Contains(active, p) })
	}
	if len(ports) > 0 {
		return ports
	}
	for _, container := range containers(pod) {
		for _, p := range container.Ports {
			if p.Name == "http" {
				return []uint16{uint16(p.ContainerPort)} //nolint:gosec // the API server has checked it
			}
		}
	}
	return []uint16{defaultPort}
}

// active are the ports that a pod's annotation limits it to, nil for all.
func active(pod *corev1.Pod) []uint16 {
	for _, key := range []string{"llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"} {
		if value, set := pod.Annotations[key]; set {
			return numbers(value)
		}
	}
	return nil
}

func numbers(list string) (ports []uint16) {
	for text := range strings.SplitSeq(list, ",") {
		if n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16); err == nil {
			ports = append(ports, uint16(n))
		}
	}
	return ports
}

// addPickers makes pickers of their pods. Only their metrics port speaks HTTP to others.
func (f *fleet) addPickers(pods []*corev1.Pod) {
	for _, pod := range pods {
		ip, err := netip.ParseAddr(pod.Status.PodIP)
		if err != nil {
			continue
		}
		at := func(flag string, port uint16) netip.AddrPort {
			if n := numbers(argument(pod, flag)); len(n) == 1 {
				port = n[0]
			}
			return netip.AddrPortFrom(ip.Unmap(), port)
		}
		p := &picker{name: pod.Name, pod: &target{name: pod.Name, addr: at("metrics-port", 9090), pod: pod}}
		if f.reach.dials() {
			p.extproc, p.health = at("grpc-port", 9002).String(), at("grpc-health-port", 9003).String()
		}
		f.pickers = append(f.pickers, p)
	}
}

// goThrough has the API server pass all questions on to the pods.
func (f *fleet) goThrough(config *rest.Config, client *http.Client) error {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	passing := *client
	passing.CheckRedirect = noRedirect
	f.reach = proxied{&passing, strings.TrimSuffix(base.String(), "/")}
	return nil
}

// proxied asks pods through the API server.
type proxied struct {
	http *http.Client
	base string
}

func (p proxied) client() *http.Client { return p.http }
func (p proxied) dials() bool          { return false }
func (p proxied) url(t *target, scheme string, port uint16, path string) string {
	name := fmt.Sprintf("%s:%d", t.pod.Name, port)
	if scheme == "https" {
		name = "https:" + name
	}
	return fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/proxy%s", p.base, t.pod.Namespace, name, path)
}
