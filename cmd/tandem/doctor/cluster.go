package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
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

// Labels of the chart's objects, which other charts use too.
const (
	instanceLabel  = "app.kubernetes.io/instance"
	componentLabel = "app.kubernetes.io/component"
	// workerLabel is the number of a pod in its group, which the controller of LeaderWorkerSets sets: 0 is the leader.
	workerLabel = "leaderworkerset.sigs.k8s.io/worker-index"
)

// cluster holds the objects of a namespace.
type cluster struct {
	pods     []corev1.Pod // all of the namespace
	engines  []*corev1.Pod
	pools    []*inferencePool
	pool     *inferencePool // the pool of these engines; nil: there is none
	selector labels.Selector
	from     string // the object or flag that has the selector
	services []corev1.Service
	trouble  error // why services cannot be read
	unseen   error // why InferencePools cannot be read
}

// inferencePool has the fields of an InferencePool that the checks need.
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
		return boot.Missingf("reading the pods of the namespace: %w", err)
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

// config returns the configuration to reach the API server.
func (c *clusterFlags) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
}

// direct reports whether pods can be reached at their addresses, which is so inside a cluster.
func (c *clusterFlags) direct() bool {
	if c.Via != viaAuto {
		return c.Via == viaDirect
	}
	_, err := rest.InClusterConfig()
	return err == nil && c.Kubeconfig == ""
}

// list reads the objects of the namespace. Only the pods are required.
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

// listPools reads the InferencePools. A cluster without the resource type has none.
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

// choosePool takes the pool that is labelled as part of this release, else the one that selects most of its engines: a
// selector that matches none of them is a fault to be found.
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
		if !hasRole && pod.Labels[workerLabel] != "" && pod.Labels[workerLabel] != "0" {
			engine = false // the leader of its group serves for it
		}
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

// pickers returns the pods of the picker, as Tandem's chart labels them.
func (c *cluster) pickers(release string) (found []*corev1.Pod) {
	for i := range c.pods {
		pod := &c.pods[i]
		if pod.Labels[componentLabel] == "epp" && pod.Labels[instanceLabel] == release && pod.DeletionTimestamp == nil && pod.Status.PodIP != "" {
			found = append(found, pod)
		}
	}
	return found
}

// readSelector reads the labels by which the pool selects engines, from the InferencePool or a picker's flags.
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

// addPods adds the engines that have an address as endpoints.
func (f *fleet) addPods(pickers []*corev1.Pod) {
	var given string
	for _, pod := range pickers {
		given = argument(pod, "endpoint-target-ports")
	}
	for _, pod := range f.cluster.engines {
		ip, err := netip.ParseAddr(pod.Status.PodIP)
		if err != nil {
			continue // checkPods reports it
		}
		ports := f.cluster.ports(pod, given)
		for i, port := range ports {
			t := &target{name: pod.Name, addr: netip.AddrPortFrom(ip.Unmap(), port), pod: pod, rank: i}
			if len(ports) > 1 {
				t.name = fmt.Sprintf("%s-rank-%d", pod.Name, i)
			}
			t.setLabels(pod.Labels)
			f.targets = append(f.targets, t)
		}
	}
}

// defaultPort is the default port of engines and sidecars.
const defaultPort = 8000

// ports returns the ports at which a pod serves: the pool's, those in the picker's flags, or the pod's port named http.
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

// active returns the ports to which an annotation limits a pod, or nil for all.
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

// addPickers adds pickers for their pods. Other pods reach only their metrics port over HTTP.
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

// goThrough sends all requests to pods through the API server's proxy.
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

// proxied reaches pods through the API server's proxy.
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

// containers returns all containers that run together in a pod: native sidecars are among the init containers.
func containers(pod *corev1.Pod) []corev1.Container {
	return append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)
}

// argument returns the value of a flag in a pod's containers, or "" if none has it.
func argument(pod *corev1.Pod, names ...string) string {
	for _, c := range containers(pod) {
		if value := argumentOf(c, names...); value != "" {
			return value
		}
	}
	return ""
}

// argumentOf returns the value of a flag of a container, or "" if it has none. Both --name=value and --name value are
// understood.
func argumentOf(c corev1.Container, names ...string) string {
	words := append(slices.Clone(c.Command), c.Args...)
	for i, word := range words {
		name, value, together := strings.Cut(strings.TrimLeft(word, "-"), "=")
		switch {
		case !strings.HasPrefix(word, "-") || !slices.Contains(names, name):
		case together:
			return value
		case i+1 < len(words):
			return words[i+1]
		}
	}
	return ""
}

// variable returns an environment variable of a pod's containers. A variable that the kubelet fills with the pod's address
// has that address.
func variable(pod *corev1.Pod, name string) (value string, set bool) {
	for _, c := range containers(pod) {
		for _, e := range c.Env {
			if e.Name != name {
				continue
			}
			return valueOf(pod, c, e), true
		}
	}
	return "", false
}

// hidden stands for a value that the pod does not show, such as one from a Secret.
const hidden = "$"

// valueOf returns a variable's value as the kubelet computes it: a field of the pod, or a text that refers to other
// variables as $(NAME).
func valueOf(pod *corev1.Pod, c corev1.Container, e corev1.EnvVar) string {
	if e.ValueFrom != nil {
		field := e.ValueFrom.FieldRef
		if field != nil && (field.FieldPath == "status.podIP" || field.FieldPath == "status.podIPs") {
			return pod.Status.PodIP
		}
		return hidden
	}
	before, rest, named := strings.Cut(e.Value, "$(")
	name, after, closed := strings.Cut(rest, ")")
	if !named || !closed {
		return e.Value
	}
	at := slices.IndexFunc(c.Env, func(other corev1.EnvVar) bool { return other.Name == name })
	if at < 0 || c.Env[at].Name == e.Name || strings.Contains(c.Env[at].Value, "$(") {
		return hidden
	}
	return before + valueOf(pod, c, c.Env[at]) + after
}

const (
	transferFlag = "kv-transfer-config"
	sideHost     = "VLLM_NIXL_SIDE_CHANNEL_HOST"
	sidePort     = "VLLM_NIXL_SIDE_CHANNEL_PORT"
)

// fromPod fills in what the engine did not show from the arguments in its pod.
func (s *serverInfo) fromPod(pod *corev1.Pod) {
	if pod == nil {
		return
	}
	if s.Config.Transfer.Connector == "" {
		// An engine with an unreadable argument would not have started, so an error here means that the pod does not show
		// the real argument.
		_ = json.Unmarshal([]byte(argument(pod, transferFlag)), &s.Config.Transfer)
	}
	if s.Config.Parallel.Tensor == 0 {
		s.Config.Parallel.Tensor, _ = strconv.Atoi(argument(pod, "tensor-parallel-size", "tp")) // 0 = unknown
	}
	if s.Config.Parallel.Tensor == 0 && argument(pod, transferFlag) != "" {
		s.Config.Parallel.Tensor = 1 // vLLM's default
	}
}

// podSideChannel returns the engine's side channel as the pod's variables define it. That works only for pods with vLLM's
// arguments. Each data-parallel rank has its own port, one after the other.
func podSideChannel(t *target) sideChannel {
	s := sideChannel{of: t.name}
	port := strconv.Itoa(defaultSidePort)
	if value, set := variable(t.pod, sidePort); set && value != "" {
		port = value
	}
	if first, err := strconv.Atoi(port); err == nil {
		port = strconv.Itoa(first + t.rank)
	}
	host, set := variable(t.pod, sideHost)
	if !set && argument(t.pod, transferFlag) == "" {
		host = t.addr.Addr().String()
	}
	s.address = net.JoinHostPort(host, port)
	ip, err := netip.ParseAddr(host)
	switch {
	case strings.Contains(host+port, hidden):
		s.verdict, s.trouble = unknown, "its pod does not show what "+sideHost+" and "+sidePort+" are"
	case host == "":
		s.verdict, s.trouble = fail, sideHost+" is not set, and defaults to localhost"
	case host == "localhost", err == nil && ip.IsLoopback() && ip != t.addr.Addr():
		s.verdict, s.trouble = fail, sideHost+" is "+host+", which other pods cannot reach"
	}
	return s
}
