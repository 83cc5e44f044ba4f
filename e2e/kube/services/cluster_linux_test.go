package services_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/tandem-serving/tandem/e2e/controlplane"
	"github.com/tandem-serving/tandem/e2e/kube"
	"github.com/tandem-serving/tandem/e2e/kube/container"
	"github.com/tandem-serving/tandem/e2e/kube/services"
)

// patience bounds the wait for what the cluster does within a second, on a machine with a lot else to do: clients of an API
// server that was away for long try it every 30 s.
const patience = 2 * time.Minute

// bed is a cluster with a client of it, and endpoints in this process.
type bed struct {
	*testing.T
	cluster *kube.Cluster
	client  kubernetes.Interface
	names   *net.Resolver // the cluster's
}

func newBed(t *testing.T) *bed {
	cluster := kube.StartCluster(t)
	names := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(kube.DNS, "53"))
	}}
	return &bed{T: t, cluster: cluster, client: controlplane.Client(t, cluster.Config()), names: names}
}

// in gives the bed to a subtest.
func (b *bed) in(name string, test func(b *bed)) {
	b.Run(name, func(t *testing.T) {
		sub := *b
		sub.T = t
		test(&sub)
	})
}

// service makes one with the port 80, which is 8080 at endpoints.
func (b *bed) service(name string, but ...func(*corev1.Service)) *corev1.Service {
	b.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}}}}
	for _, change := range but {
		change(s)
	}
	s, err := b.client.CoreV1().Services("default").Create(b.Context(), s, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// endpoints makes the one EndpointSlice of a Service, or changes it.
func (b *bed) endpoints(service string, endpoints ...discoveryv1.Endpoint) {
	b.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: service + "-by-hand",
			Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "test"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}}}
	slices := b.client.DiscoveryV1().EndpointSlices("default")
	_, err := slices.Update(b.Context(), s, metav1.UpdateOptions{})
	if err != nil {
		_, err = slices.Create(b.Context(), s, metav1.CreateOptions{})
	}
	if err != nil {
		b.Fatal(err)
	}
}

func endpoint(ip string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: new(ready)}}
}

// pod returns an address of the pod network where something listens at 8080 and says its address to who connects; then it says
// what it is told.
func (b *bed) pod(ip string) string {
	b.Helper()
	if out, err := exec.CommandContext(b.Context(), "ip", "addr", "replace", ip+"/32", "dev", "lo").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "8080"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, ip+"\n")
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return ip
}

// connect returns a connection and which pod it leads to.
func (b *bed) connect(ip string) (net.Conn, string, error) {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(ip, "80"), patience)
	if err != nil {
		return nil, "", err
	}
	b.Cleanup(func() { c.Close() })
	said, err := line(c)
	return c, said, err
}

// line reads one, byte for byte.
func line(c net.Conn) (string, error) {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	var said []byte
	for one := make([]byte, 1); ; said = append(said, one[0]) {
		if _, err := c.Read(one); err != nil || one[0] == '\n' {
			return string(said), err
		}
	}
}

// lead waits until connections lead to these pods and no others, as many times as there are pods; none: they are refused.
func (b *bed) lead(ip string, want ...string) {
	b.Helper()
	b.await(func() error {
		var got []string
		for range max(1, len(want)) {
			c, pod, err := b.connect(ip)
			if len(want) == 0 && errors.Is(err, syscall.ECONNREFUSED) {
				return nil
			}
			if err != nil {
				return err
			}
			got = append(got, pod)
			c.Close()
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("connections to %s lead to %v, want %v", ip, got, want)
		}
		return nil
	})
}

// stand waits until a name stands for these addresses.
func (b *bed) stand(host string, want ...string) {
	b.Helper()
	b.await(func() error {
		got, err := b.names.LookupHost(b.Context(), host)
		if err != nil {
			return err
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("%s stands for %v, want %v", host, got, want)
		}
		return nil
	})
}

// await asks until there is no error any more.
func (b *bed) await(check func() error) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for err := check(); err != nil; err = check() {
		select {
		case <-again.C:
		case <-ctx.Done():
			b.Fatal(err)
		}
	}
}

func TestServices(t *testing.T) {
	b := newBed(t)
	b.in("connections go to ready endpoints in turn", func(b *bed) {
		ip := b.service("turns").Spec.ClusterIP
		one, two, three := b.pod("10.244.0.101"), b.pod("10.244.0.102"), b.pod("10.244.0.103")
		b.lead(ip)
		b.endpoints("turns", endpoint(one, true), endpoint(two, true), endpoint(three, false))
		b.lead(ip, one, two)
		b.endpoints("turns", endpoint(three, true))
		b.lead(ip, three)
	})
	b.in("connections stay when their endpoint leaves", func(b *bed) {
		ip, one, two := b.service("leave").Spec.ClusterIP, b.pod("10.244.0.104"), b.pod("10.244.0.105")
		b.endpoints("leave", endpoint(one, true))
		b.lead(ip, one)
		old, _, err := b.connect(ip)
		if err != nil {
			b.Fatal(err)
		}
		b.endpoints("leave", endpoint(two, true))
		b.lead(ip, two)
		b.endpoints("leave")
		b.lead(ip)
		if _, err := io.WriteString(old, "still there\n"); err != nil {
			b.Fatal(err)
		}
		if said, err := line(old); said != "still there" {
			b.Errorf("%q, %v", said, err)
		}
	})
	b.in("a Service that is gone", func(b *bed) {
		ip, one := b.service("gone").Spec.ClusterIP, b.pod("10.244.0.106")
		b.endpoints("gone", endpoint(one, true))
		b.lead(ip, one)
		if err := b.client.CoreV1().Services("default").Delete(b.Context(), "gone", metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		b.lead(ip)
	})
	b.in("the API server by its name, with its certificate, as a pod reaches it", testAPIServer)
	b.in("what is known stays while the API server is away", func(b *bed) {
		ip, one, two := b.service("away").Spec.ClusterIP, b.pod("10.244.0.107"), b.pod("10.244.0.108")
		b.endpoints("away", endpoint(one, true))
		b.lead(ip, one)
		b.cluster.StopAPIServer()
		b.lead(ip, one)
		b.stand("away.default.svc.cluster.local", ip)
		if err := b.cluster.StartAPIServer(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.endpoints("away", endpoint(two, true))
		b.lead(ip, two)
	})
	b.in("names", testNames)
	b.in("from a pod, by a short name", testPod)
	b.in("there is one of its kind", func(b *bed) {
		if s, err := services.Start(b.Context(), b.cluster.Config()); err == nil {
			b.Error("another one runs", s.Stop())
		} else if !strings.Contains(err.Error(), "without another cluster") {
			b.Error(err)
		}
	})
}

// testAPIServer completes the name that is in the certificate, as a pod's search list does.
func testAPIServer(b *bed) {
	const name = "kubernetes.default.svc"
	b.stand(name+"."+kube.Domain, services.APIServer)
	config, _ := b.cluster.As(b.Context(), "default", "someone")
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialer := net.Dialer{Resolver: b.names}
		return dialer.DialContext(ctx, network, strings.Replace(address, name, name+"."+kube.Domain, 1))
	}
	answer, err := controlplane.HTTPClient(b, config).Get("https://" + name + "/readyz")
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		b.Error(answer.Status)
	}
}

func testNames(b *bed) {
	ip := b.service("named").Spec.ClusterIP
	b.stand("named.default.svc.cluster.local", ip)
	b.stand("named.default.svc.cluster.local.", ip)
	b.service("headless", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone })
	var all []discoveryv1.Endpoint
	var want []string
	for i := range byte(99) {
		address := netip.AddrFrom4([4]byte{10, 244, 2, 1 + i}).String()
		all, want = append(all, endpoint(address, true)), append(want, address)
	}
	slices.Sort(want)
	b.endpoints("headless", append(all, endpoint("10.244.2.200", false))...)
	b.stand("headless.default.svc.cluster.local", want...) // too many for UDP

	for _, host := range []string{"unknown.default.svc.cluster.local", "named.other.svc.cluster.local", "example.com"} {
		_, err := b.names.LookupHost(b.Context(), host)
		if no, ok := errors.AsType[*net.DNSError](err); !ok || !no.IsNotFound {
			b.Errorf("%s: %v, want that there is no such host", host, err)
		}
	}
	if v6, err := b.names.LookupIP(b.Context(), "ip6", "named.default.svc.cluster.local"); err == nil {
		b.Errorf("addresses of IPv6: %v", v6)
	} else if no, ok := errors.AsType[*net.DNSError](err); !ok || !no.IsNotFound {
		b.Errorf("no address of IPv6: %v", err)
	}
}

// testPod has a shell of this machine, in a pod, connect to a Service by the name that its search list completes.
func testPod(b *bed) {
	b.service("short")
	b.endpoints("short", endpoint(b.pod("10.244.0.109"), true))
	host, err := container.NewHost(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := host.Close(); err != nil {
			b.Error(err)
		}
	}()
	sandbox, err := host.NewSandbox(b.Context(), container.SandboxOptions{Name: "pod", Hostname: "pod", Nameservers: []string{kube.DNS},
		Searches: []string{"default.svc." + kube.Domain, "svc." + kube.Domain, kube.Domain}})
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"short", "short.default", "short.default.svc"} {
		b.await(func() error {
			said, err := shell(b, sandbox, "exec 3<>/dev/tcp/"+name+"/80 && read -r line <&3 && echo $line")
			if err == nil && said != "10.244.0.109\n" {
				err = fmt.Errorf("%s: %q, want the endpoint's address", name, said)
			}
			return err
		})
	}
}

// shell returns what a shell prints in a pod.
func shell(b *bed, sandbox *container.Sandbox, script string) (string, error) {
	path, err := exec.LookPath("bash")
	if err != nil {
		return "", err
	}
	var said strings.Builder
	c, err := sandbox.Start(container.Spec{Name: "shell", Image: container.Image{Shared: []string{"/bin", "/lib", "/lib64", "/usr"}},
		Args: []string{path, "-c", script}, UID: 65532, GID: 65532, ReadOnlyRoot: true, Log: &said})
	if err != nil {
		return "", err
	}
	select {
	case <-c.Done():
		return said.String(), nil
	case <-b.Context().Done():
		return "", errors.Join(context.Cause(b.Context()), c.Kill())
	}
}
