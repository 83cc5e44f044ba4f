package why

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// Labels of the chart's objects, and the admin ports that programs have without a flag.
const (
	instanceLabel  = "app.kubernetes.io/instance"
	componentLabel = "app.kubernetes.io/component"

	pickerPort, sidecarPort = 9091, 9096
)

// places finds the pickers and sidecars among the pods of the namespace.
func (c *clusterFlags) places(ctx context.Context) (*places, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, boot.Configf("kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, boot.Configf("kubeconfig: %w", err)
	}
	selector := labels.Everything()
	if c.Release != "" {
		selector = labels.SelectorFromSet(labels.Set{instanceLabel: c.Release})
	}
	pods, err := client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, boot.Missingf("reading the pods of the namespace: %w", err)
	}
	all := &places{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase != corev1.PodRunning {
			continue
		}
		forward := &forwarder{config, client, pod.Namespace, pod.Name}
		pickers, sidecars := adminPorts(pod)
		for _, port := range pickers {
			all.pickers = append(all.pickers, place{pod.Name, pod.Status.PodIP, forward.to(port)})
		}
		for _, port := range sidecars {
			name := pod.Name
			if len(sidecars) > 1 { // one for each rank
				name = fmt.Sprintf("%s port %d", pod.Name, port)
			}
			all.sidecars = append(all.sidecars, place{name, pod.Status.PodIP, forward.to(port)})
		}
	}
	if len(all.pickers)+len(all.sidecars) == 0 {
		return nil, boot.Missingf("no pod of namespace %s that runs has a picker or a sidecar (containers named epp, sidecar or routing-proxy)", c.Namespace)
	}
	return all, nil
}

// adminPorts returns the admin ports of the pickers and sidecars in a pod. It knows their containers by the names that the charts
// of Tandem and of llm-d give them.
func adminPorts(pod *corev1.Pod) (pickers, sidecars []int) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		switch {
		case strings.HasPrefix(c.Name, "sidecar"), strings.HasPrefix(c.Name, "routing-proxy"):
			sidecars = append(sidecars, adminPort(c.Args, sidecarPort))
		case c.Name == "epp", pod.Labels[componentLabel] == "epp":
			pickers = append(pickers, adminPort(c.Args, pickerPort))
		}
	}
	return pickers, sidecars
}

// adminPort returns the port of --admin-address among a program's arguments.
func adminPort(args []string, without int) int {
	for i, arg := range args {
		name, address, inOne := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if name != "admin-address" || !strings.HasPrefix(arg, "-") {
			continue
		}
		if !inOne && i+1 < len(args) {
			address = args[i+1]
		}
		if _, text, err := net.SplitHostPort(address); err == nil {
			if port, err := strconv.Atoi(text); err == nil {
				return port
			}
		}
	}
	return without
}

// forwarder reaches ports of a pod, on loopback too, through the API server.
type forwarder struct {
	config         *rest.Config
	client         kubernetes.Interface
	namespace, pod string
}

// to returns the way to a port. Each request has a connection of its own.
func (f *forwarder) to(port int) getter {
	return func(ctx context.Context, path string) (*http.Response, error) {
		conn, err := f.dial(ctx)
		if err != nil {
			return nil, fmt.Errorf("forwarding its port %d: %w", port, err)
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		resp, err := request(ctx, conn, port, path)
		if err != nil {
			stop()
			conn.Close()
			return nil, fmt.Errorf("asking its port %d: %w", port, err)
		}
		resp.Body = &forwarded{resp.Body, conn, stop}
		return resp, nil
	}
}

// dial connects to the pod over WebSocket or, where the API server does not have that, over SPDY.
func (f *forwarder) dial(ctx context.Context) (httpstream.Connection, error) {
	url := f.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(f.namespace).Name(f.pod).SubResource("portforward").URL()
	config := rest.CopyConfig(f.config)
	if deadline, ok := ctx.Deadline(); ok {
		config.Dial = (&net.Dialer{Deadline: deadline}).DialContext
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	older := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	newer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, config)
	if err != nil {
		return nil, err
	}
	conn, _, err := portforward.NewFallbackDialerForStreaming(newer, older, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}).Dial(portforward.PortForwardProtocolV1Name)
	return conn, err
}

// requests numbers the requests of this process, as the protocol wants.
var requests atomic.Int64

// request sends a GET to a port of the pod at the other end of a connection, and reads the head of the answer.
func request(ctx context.Context, conn httpstream.Connection, port int, path string) (*http.Response, error) {
	header := http.Header{}
	header.Set(corev1.PortHeader, strconv.Itoa(port))
	header.Set(corev1.PortForwardRequestIDHeader, strconv.FormatInt(requests.Add(1), 10))
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := conn.CreateStream(header)
	if err != nil {
		return nil, err
	}
	if err := failures.Close(); err != nil { // this side writes nothing to it
		return nil, err
	}
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(header)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	if err := req.Write(data); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(data), req)
	if err == nil {
		return resp, nil
	}
	// The kubelet says why, if nothing listens at the port.
	if why, _ := io.ReadAll(io.LimitReader(failures, 1<<10)); len(why) > 0 {
		return nil, fmt.Errorf("%s", strings.TrimSpace(string(why)))
	}
	return nil, err
}

// forwarded is the body of an answer that closes its connection.
type forwarded struct {
	io.ReadCloser
	conn httpstream.Connection
	stop func() bool
}

// Close implements io.Closer.
func (f *forwarded) Close() error {
	f.stop()
	err := f.ReadCloser.Close()
	if closeErr := f.conn.Close(); err == nil {
		err = closeErr
	}
	return err
}
