package kube

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// maxPorts is the most target ports of a pool.
const maxPorts = 8

var errEmptySelector = errors.New(
	"selector is empty and would take every pod of the namespace: name labels that only the model servers have")

// target is the selector of the pool's pods, and the ports on which they serve.
type target struct {
	selector labels.Selector
	ports    []uint16
}

// target returns the target of a pool. An error means that it cannot be used.
func (p *InferencePool) target() (*target, error) {
	if len(p.Spec.Selector.MatchLabels) == 0 {
		return nil, fmt.Errorf("its %w", errEmptySelector)
	}
	selector, err := labels.Set(p.Spec.Selector.MatchLabels).AsValidatedSelector()
	if err != nil {
		return nil, fmt.Errorf("its selector matches nothing: %w", err)
	}
	numbers := make([]int, len(p.Spec.TargetPorts))
	for i, port := range p.Spec.TargetPorts {
		numbers[i] = int(port.Number)
	}
	ports, err := portsOf(numbers)
	if err != nil {
		return nil, fmt.Errorf("its target ports cannot be used: %w", err)
	}
	return &target{selector, ports}, nil
}

// portsOf checks target ports.
func portsOf(numbers []int) ([]uint16, error) {
	if len(numbers) == 0 || len(numbers) > maxPorts {
		return nil, fmt.Errorf("there are %d, want 1 to %d", len(numbers), maxPorts)
	}
	var ports []uint16
	for _, n := range numbers {
		switch {
		case n < 1 || n > 65535:
			return nil, fmt.Errorf("%d is not from 1 to 65535", n)
		case slices.Contains(ports, uint16(n)):
			return nil, fmt.Errorf("%d is there twice", n)
		}
		ports = append(ports, uint16(n))
	}
	return ports, nil
}

// current returns the older pool in the form of the newer.
func (p *AlphaInferencePool) current() *InferencePool {
	ports := p.Spec.TargetPorts
	if len(ports) == 0 && p.Spec.TargetPortNumber != 0 {
		ports = []Port{{p.Spec.TargetPortNumber}}
	}
	return &InferencePool{ObjectMeta: p.ObjectMeta, Spec: InferencePoolSpec{
		Selector: LabelSelector{p.Spec.Selector}, TargetPorts: ports,
	}}
}
