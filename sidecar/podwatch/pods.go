package podwatch

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
)

// podSet has the addresses of the pods of one selector. One goroutine uses it.
type podSet struct {
	addrs   map[string][]netip.Addr // by the pod's name
	publish func(map[netip.Addr]bool)
}

// pod has what is read of a pod.
type pod struct {
	Metadata struct{ Name string }
	Status   struct {
		Phase  string
		PodIPs []struct{ IP string }
	}
}

// addresses returns the addresses of a pod, none if its containers have ended: another pod may have them then.
func (p *pod) addresses() (addrs []netip.Addr) {
	if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
		return nil
	}
	for _, one := range p.Status.PodIPs {
		if addr, err := netip.ParseAddr(one.IP); err == nil {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs
}

// reset replaces all pods.
func (s *podSet) reset(items []json.RawMessage) error {
	clear(s.addrs)
	for _, item := range items {
		if _, err := s.set(item); err != nil {
			return err
		}
	}
	s.tell()
	return nil
}

// change applies an event of a watch.
func (s *podSet) change(e event) error {
	var changed bool
	var err error
	switch e.Type {
	case "ADDED", "MODIFIED":
		changed, err = s.set(e.Object)
	case "DELETED":
		changed, err = s.remove(e.Object)
	}
	if changed {
		s.tell()
	}
	return err
}

func (s *podSet) set(item json.RawMessage) (changed bool, err error) {
	var p pod
	if err := json.Unmarshal(item, &p); err != nil {
		return false, fmt.Errorf("reading a pod: %w", err)
	}
	now := p.addresses()
	changed = !slices.Equal(s.addrs[p.Metadata.Name], now)
	s.addrs[p.Metadata.Name] = now
	return changed, nil
}

func (s *podSet) remove(item json.RawMessage) (changed bool, err error) {
	var p pod
	if err := json.Unmarshal(item, &p); err != nil {
		return false, fmt.Errorf("reading a pod: %w", err)
	}
	_, changed = s.addrs[p.Metadata.Name]
	delete(s.addrs, p.Metadata.Name)
	return changed, nil
}

// tell publishes a new set of all addresses.
func (s *podSet) tell() {
	all := make(map[netip.Addr]bool, len(s.addrs))
	for _, addrs := range s.addrs {
		for _, addr := range addrs {
			all[addr] = true
		}
	}
	s.publish(all)
}
