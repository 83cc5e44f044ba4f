package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/tandem-serving/tandem/e2e/controlplane"
	"github.com/tandem-serving/tandem/e2e/kube"
	"github.com/tandem-serving/tandem/e2e/kube/container"
)

const (
	// patience bounds the wait for what takes seconds.
	patience = time.Minute
	// testBackoff is the pause before the second restart of a container.
	testBackoff = 5 * time.Second
	apiServer   = "10.0.0.1:443"
)

// bench is a cluster with nodes.
type bench struct {
	cluster *kube.Cluster
	client  kubernetes.Interface
	host    *container.Host
	node    *Node
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{cluster: kube.StartCluster(t)}
	b.client = controlplane.Client(t, b.cluster.Config())
	var err error
	if b.host, err = container.NewHost(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.host.Close(); err != nil {
			t.Error(err)
		}
	})
	b.node = b.start(t, "node-1", netip.MustParseAddr("10.244.0.11"), t.TempDir())
	return b
}

// start runs a node until the test ends.
func (b *bench) start(t *testing.T, name string, address netip.Addr, dir string) *Node {
	t.Helper()
	n, err := Start(t.Context(), Options{Name: name, Address: address, Config: b.cluster.Config(), Host: b.host,
		Images: testImages(t), Dir: dir, Nameservers: []string{kube.DNS}, Domain: kube.Domain, APIServer: apiServer,
		Backoff: testBackoff, Labels: map[string]string{"name": name}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}

// create makes a pod of the YAML of its spec, which goes at the end of the test. What it does not say of its containers'
// image, it is imageName.
func (b *bench) create(t *testing.T, name, spec string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}}
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			list[i].Image = or(list[i].Image, imageName)
		}
	}
	made, err := b.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		err := b.client.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return made
}

// await asks for a pod until it is as wanted.
func (b *bench) await(t *testing.T, name string, check func(p *corev1.Pod) error) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	until(t, func(ctx context.Context) (err error) {
		if pod, err = b.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if err = check(pod); err != nil {
			text, _ := yaml.Marshal(pod.Status)
			err = fmt.Errorf("pod %s: %w; its status is\n%s", name, err, text)
		}
		return err
	})
	return pod
}

// until asks until there is no error any more.
func until(t *testing.T, check func(ctx context.Context) error) {
	t.Helper()
	over := time.After(patience)
	again := time.NewTicker(30 * time.Millisecond)
	defer again.Stop()
	for err := check(t.Context()); err != nil; err = check(t.Context()) {
		select {
		case <-again.C:
		case <-over:
			t.Fatal(err)
		}
	}
}

// statusOf returns the status of a container.
func statusOf(p *corev1.Pod, name string) corev1.ContainerStatus {
	for _, s := range append(slices.Clone(p.Status.InitContainerStatuses), p.Status.ContainerStatuses...) {
		if s.Name == name {
			return s
		}
	}
	return corev1.ContainerStatus{}
}

// conditionsOf writes the conditions that matter as Type or !Type, with the reason of those that have one.
func conditionsOf(p *corev1.Pod) string {
	var words []string
	for _, t := range []corev1.PodConditionType{"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"} {
		word := "?" + string(t)
		for _, c := range p.Status.Conditions {
			if c.Type != t {
				continue
			}
			word = string(t)
			if c.Status != corev1.ConditionTrue {
				word = "!" + word
			}
			if c.Reason != "" {
				word += ":" + c.Reason
			}
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// stateOf writes the state of a container in short: waiting, its reason, or running, or terminated with reason and code.
func stateOf(s corev1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return "waiting " + s.Waiting.Reason
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("terminated %s %d", s.Terminated.Reason, s.Terminated.ExitCode)
	}
	return "none"
}

// want compares, and says what is otherwise.
func want(what string, got, wanted any) error {
	if got != wanted {
		return fmt.Errorf("%s: %v, want %v", what, got, wanted)
	}
	return nil
}

// shows waits for a phase, conditions and states of containers ("name=state").
func (b *bench) shows(t *testing.T, name string, phase corev1.PodPhase, conditions string, states ...string) *corev1.Pod {
	t.Helper()
	return b.await(t, name, func(p *corev1.Pod) error {
		errs := []error{want("phase", p.Status.Phase, phase), want("conditions", conditionsOf(p), conditions)}
		for _, s := range states {
			container, state, _ := strings.Cut(s, "=")
			errs = append(errs, want("state of "+container, stateOf(statusOf(p, container).State), state))
		}
		return errors.Join(errs...)
	})
}

// happened waits for an event of a pod with a reason and a part of its message.
func (b *bench) happened(t *testing.T, name, reason, message string) corev1.Event {
	t.Helper()
	var found corev1.Event
	until(t, func(ctx context.Context) error {
		events, err := b.client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return err
		}
		var others []string
		for _, e := range events.Items {
			if e.Reason == reason && strings.Contains(e.Message, message) {
				found = e
				return nil
			}
			others = append(others, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("pod %s has no event %s with %q, only\n%s", name, reason, message, strings.Join(others, "\n"))
	})
	return found
}

// delete asks for the end of a pod as kubectl does.
func (b *bench) delete(t *testing.T, name string) {
	t.Helper()
	if err := b.client.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// vanished waits until a pod is there no more.
func (b *bench) vanished(t *testing.T, name string) {
	t.Helper()
	until(t, func(ctx context.Context) error {
		_, err := b.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s is still there: %w", name, err)
		}
		return nil
	})
}

// logs returns what kubectl logs prints.
func (b *bench) logs(t *testing.T, args ...string) string {
	t.Helper()
	out, err := b.cluster.Kubectl(t.Context(), "", append([]string{"logs"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// prints waits until kubectl logs prints something: who runs has not said all at once.
func (b *bench) prints(t *testing.T, want string, args ...string) {
	t.Helper()
	until(t, func(context.Context) error {
		if got := b.logs(t, args...); got != want {
			return fmt.Errorf("kubectl logs %v prints\n%s\nwant\n%s", args, got, want)
		}
		return nil
	})
}

// restarted waits until a container was started again.
func (b *bench) restarted(t *testing.T, pod, name string) {
	t.Helper()
	b.await(t, pod, func(p *corev1.Pod) error {
		if statusOf(p, name).RestartCount == 0 {
			return fmt.Errorf("container %s was not started again", name)
		}
		return nil
	})
}

// touch makes a file in an emptyDir of a pod.
func (b *bench) touch(t *testing.T, pod *corev1.Pod, volume, name string) {
	t.Helper()
	dir := filepath.Join(b.node.options.Dir, "pods", string(pod.UID), "volumes", volume)
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}
