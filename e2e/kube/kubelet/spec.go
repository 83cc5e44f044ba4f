package kubelet

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/e2e/kube/container"
)

// errRoot is what becomes of a container that must not run as root and would.
var errRoot = errors.New("container has runAsNonRoot and image will run as root")

// spec says what a container runs.
func (w *worker) spec(s *slot, image container.Image) (container.Spec, error) {
	env, err := environment(w.life, w.node, w.in(), s.spec, w.node.options.APIServer)
	if err != nil {
		return container.Spec{}, err
	}
	mounts, err := w.volumes.mounts(w.pod, s.spec, env)
	if err != nil {
		return container.Spec{}, err
	}
	spec := container.Spec{Name: s.name, Image: image, Args: arguments(s.spec, image, env), Mounts: mounts,
		Env: inImage(image, hostname(w.pod), env).list(), Dir: or(s.spec.WorkingDir, image.Dir)}
	if len(spec.Args) == 0 {
		return container.Spec{}, errors.New("no command specified")
	}
	if err := identify(&spec, w.pod.Spec.SecurityContext, s.spec.SecurityContext); err != nil {
		return container.Spec{}, err
	}
	return spec, nil
}

// arguments returns the whole command line: a command of the container takes the place of all that the image says, its args that
// of the image's command.
func arguments(c *corev1.Container, image container.Image, env *variables) []string {
	var argv []string
	for _, word := range c.Command {
		argv = append(argv, expand(word, env.get))
	}
	if len(argv) == 0 {
		argv = append(argv, image.Entrypoint...)
		if len(c.Args) == 0 {
			return append(argv, image.Command...)
		}
	}
	for _, word := range c.Args {
		argv = append(argv, expand(word, env.get))
	}
	return argv
}

// inImage adds variables to those that the image and its engine set.
func inImage(image container.Image, host string, env *variables) *variables {
	all := new(variables)
	all.set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	all.set("HOSTNAME", host)
	for _, v := range image.Env {
		name, value, _ := strings.Cut(v, "=")
		all.set(name, value)
	}
	for _, name := range env.names {
		all.set(name, env.values[name])
	}
	return all
}

// hostname is what the containers of a pod take for the name of their machine.
func hostname(pod *corev1.Pod) string {
	const most = 63 // characters of a DNS label
	name := or(pod.Spec.Hostname, pod.Name)
	return strings.TrimRight(name[:min(len(name), most)], "-.")
}

// identify sets as whom a container runs.
func identify(spec *container.Spec, pod *corev1.PodSecurityContext, own *corev1.SecurityContext) error {
	if pod == nil {
		pod = new(corev1.PodSecurityContext)
	}
	if own == nil {
		own = new(corev1.SecurityContext)
	}
	spec.UID, spec.GID = spec.Image.UID, spec.Image.GID
	if user := first(own.RunAsUser, pod.RunAsUser); user != nil {
		spec.UID, spec.GID = int(*user), 0
	}
	if group := first(own.RunAsGroup, pod.RunAsGroup); group != nil {
		spec.GID = int(*group)
	}
	for _, group := range pod.SupplementalGroups {
		spec.Groups = append(spec.Groups, int(group))
	}
	if pod.FSGroup != nil {
		spec.Groups = append(spec.Groups, int(*pod.FSGroup))
	}
	if must := first(own.RunAsNonRoot, pod.RunAsNonRoot); must != nil && *must && spec.UID == 0 {
		return errRoot
	}
	spec.ReadOnlyRoot = own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem
	return nil
}

func first[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// refusal says why a pod is not run here, or is nil.
func refusal(pod *corev1.Pod) error {
	if s := &pod.Spec; s.HostNetwork || s.HostPID || s.HostIPC {
		return fmt.Errorf("%w: the namespaces of the host", errUnsupported)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged {
			return fmt.Errorf("%w: privileged containers", errUnsupported)
		}
		if len(c.VolumeDevices) > 0 {
			return fmt.Errorf("%w: devices as volumes", errUnsupported)
		}
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.HostPath != nil {
			return fmt.Errorf("%w: volumes of the host", errUnsupported)
		}
	}
	return nil
}

// refuse says in the status of each container why the pod is not run.
func (w *worker) refuse() {
	for _, s := range w.slots {
		if s.waiting == nil {
			s.waiting = &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: w.refused.Error()}
			w.tellOf(s, corev1.EventTypeWarning, "Failed", "Error: "+w.refused.Error())
		}
	}
}
