package doctor

import (
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// containers are all that run beside each other in a pod: native sidecars are among the init containers.
func containers(pod *corev1.Pod) []corev1.Container {
	return append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)
}

// argument is the value of a flag in a pod's containers, "" if none has it.
func argument(pod *corev1.Pod, names ...string) string {
	for _, c := range containers(pod) {
		if value := argumentOf(c, names...); value != "" {
			return value
		}
	}
	return ""
}

// argumentOf is the value of a flag of a container, "" if it has none: --name=value, or --name value.
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

// variable is an environment variable of a pod's containers. One that the kubelet fills in from the pod's address has it.
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

// hidden is a value that the pod does not show: of a Secret, say.
const hidden = "$"

// valueOf is what the kubelet makes of a variable: a field of the pod, or a text in which others are named as $(NAME).
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

// fromPod takes what the engine did not tell from the arguments that its pod gives it.
func (s *serverInfo) fromPod(pod *corev1.Pod) {
	if pod == nil {
		return
	}
	if s.Config.Transfer.Connector == "" {
		// An engine whose argument cannot be read would not have started, so this one is not seen as it is.
		_ = json.Unmarshal([]byte(argument(pod, transferFlag)), &s.Config.Transfer)
	}
	if s.Config.Parallel.Tensor == 0 {
		s.Config.Parallel.Tensor, _ = strconv.Atoi(argument(pod, "tensor-parallel-size", "tp")) // 0 = not known
	}
	if s.Config.Parallel.Tensor == 0 && argument(pod, transferFlag) != "" {
		s.Config.Parallel.Tensor = 1 // vLLM's default
	}
}

// podSideChannel is where the pod says that its engine's side channel is. Only a pod with vLLM's arguments says it in vLLM's
// way. Each data-parallel rank has its own, one port after the other.
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
		s.verdict, s.trouble = fail, sideHost+" is not set, and its default is localhost"
	case host == "localhost", err == nil && ip.IsLoopback() && ip != t.addr.Addr():
		s.verdict, s.trouble = fail, sideHost+" is "+host+", which other pods cannot reach"
	}
	return s
}
