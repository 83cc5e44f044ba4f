package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-serving/tandem/epp"
)

// Annotations that limit which of the pool's ports a pod serves: numbers separated by commas. The older one counts only if
// the other is missing.
const (
	activePorts      = "llm-d.ai/active-ports"
	activePortsOlder = "inference.networking.k8s.io/active-ports"
)

// trimPod keeps only the used parts of a pod. It runs before a pod is cached: thousands of whole pods are tens of megabytes.
func trimPod(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion,
		Labels: p.Labels, DeletionTimestamp: p.DeletionTimestamp,
	}}
	if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{{Kind: owner.Kind, Name: owner.Name, Controller: owner.Controller}}
	}
	for _, name := range []string{activePorts, activePortsOlder, corev1.PodDeletionCost} {
		if value, there := p.Annotations[name]; there {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, name, value)
		}
	}
	kept.Status.PodIP, kept.Status.HostIP = p.Status.PodIP, p.Status.HostIP
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			kept.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return kept, nil
}

// endpointsOf returns the endpoints of a pod, none if it cannot serve. problem says what is wrong with the pod.
func endpointsOf(p *corev1.Pod, ports []uint16, of variantsByTarget) (specs []epp.Spec, problem string) {
	if p.DeletionTimestamp != nil || !ready(p) || p.Status.PodIP == "" {
		return nil, ""
	}
	addr, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil {
		return nil, fmt.Sprintf("pod %s/%s serves nothing: its address %q is none", p.Namespace, p.Name, p.Status.PodIP)
	}
	node, _ := netip.ParseAddr(p.Status.HostIP) // few configurations need it
	active, problem := activeOf(p, ports)
	labels := of.labelsOf(p)
	for i, port := range ports {
		if active == nil || active[port] {
			specs = append(specs, epp.Spec{Namespace: p.Namespace, Name: p.Name + "-rank-" + strconv.Itoa(i),
				Addr: netip.AddrPortFrom(addr.Unmap(), port), Labels: labels, Pod: p.Name, Node: node.Unmap()})
		}
	}
	return specs, problem
}

func ready(p *corev1.Pod) bool {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.PodReady {
			return p.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// activeOf returns the ports that the pod's annotation names, nil if it has none. As in llm-d, numbers that are no port of
// the pool are ignored, so a pod whose annotation has no other ones has no endpoint.
func activeOf(p *corev1.Pod, ports []uint16) (active map[uint16]bool, problem string) {
	name := activePorts
	value, there := p.Annotations[name]
	if !there {
		name = activePortsOlder
		if value, there = p.Annotations[name]; !there {
			return nil, ""
		}
	}
	active = make(map[uint16]bool, len(ports))
	var odd []string
	for text := range strings.SplitSeq(value, ",") {
		text = strings.TrimSpace(text)
		port, err := strconv.ParseUint(text, 10, 16)
		switch {
		case text == "":
		case err == nil && slices.Contains(ports, uint16(port)):
			active[uint16(port)] = true
		default:
			odd = append(odd, strconv.Quote(text))
		}
	}
	if len(odd) > 0 {
		problem = fmt.Sprintf("annotation %s of pod %s/%s names %s, want ports of the pool (%s); the pod serves %d of them",
			name, p.Namespace, p.Name, strings.Join(odd, ", "), portList(ports), len(active))
	}
	return active, problem
}

func portList(ports []uint16) string {
	text := make([]string, len(ports))
	for i, p := range ports {
		text[i] = strconv.Itoa(int(p))
	}
	return strings.Join(text, ", ")
}

// sameSpecs reports whether the endpoints of a pod are unchanged.
func sameSpecs(a, b []epp.Spec) bool {
	return slices.EqualFunc(a, b, func(a, b epp.Spec) bool {
		return a.Namespace == b.Namespace && a.Name == b.Name && a.Addr == b.Addr && a.Node == b.Node && maps.Equal(a.Labels, b.Labels)
	})
}
