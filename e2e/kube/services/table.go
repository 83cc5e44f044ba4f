package services

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// name is what a Service is called.
type name struct{ namespace, service string }

// table is the state of all Services at one moment. It does not change.
type table struct {
	fronts     map[netip.AddrPort][]netip.AddrPort // where a Service is reached, and its endpoints; nowhere with none
	addresses  map[name][]netip.Addr               // what a Service's name stands for
	namespaces map[string]bool                     // that have a Service
}

// newTable reads what the API server has.
func newTable(services []*corev1.Service, all []*discoveryv1.EndpointSlice) *table {
	t := &table{fronts: map[netip.AddrPort][]netip.AddrPort{}, addresses: map[name][]netip.Addr{}, namespaces: map[string]bool{}}
	of := map[name][]*discoveryv1.EndpointSlice{}
	for _, s := range all {
		if s.AddressType == discoveryv1.AddressTypeIPv4 {
			n := name{s.Namespace, s.Labels[discoveryv1.LabelServiceName]}
			of[n] = append(of[n], s)
		}
	}
	for _, s := range services {
		t.add(s, of[name{s.Namespace, s.Name}])
	}
	return t
}

func (t *table) add(s *corev1.Service, of []*discoveryv1.EndpointSlice) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	n := name{s.Namespace, s.Name}
	t.namespaces[n.namespace] = true
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		t.addresses[n] = headless(of)
		return
	}
	ip, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil || !ip.Is4() {
		return // of the other family, or not given out yet
	}
	t.addresses[n] = []netip.Addr{ip}
	for _, port := range s.Spec.Ports {
		if to := endpoints(of, port.Name); isTCP(port.Protocol) && len(to) > 0 {
			t.fronts[netip.AddrPortFrom(ip, uint16(port.Port))] = to
		}
	}
}

func isTCP(p corev1.Protocol) bool { return p == corev1.ProtocolTCP || p == "" }

// endpoints returns, in order, the endpoints of a Service's port: the ready ones or, if there are none, those that serve
// while they end.
func endpoints(of []*discoveryv1.EndpointSlice, port string) []netip.AddrPort {
	var ready, ending []netip.AddrPort
	for _, slice := range of {
		number, ok := find(slice.Ports, port)
		if !ok {
			continue
		}
		for _, e := range slice.Endpoints {
			ip, err := netip.ParseAddr(first(e.Addresses))
			switch c := e.Conditions; {
			case err != nil:
			case isReady(c):
				ready = append(ready, netip.AddrPortFrom(ip, number))
			case serves(c) && c.Terminating != nil && *c.Terminating:
				ending = append(ending, netip.AddrPortFrom(ip, number))
			}
		}
	}
	if len(ready) == 0 {
		ready = ending
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready) // an endpoint that moves from slice to slice is in both for a moment
}

// headless returns the addresses of all ready endpoints, in order.
func headless(of []*discoveryv1.EndpointSlice) (addresses []netip.Addr) {
	for _, slice := range of {
		for _, e := range slice.Endpoints {
			if ip, err := netip.ParseAddr(first(e.Addresses)); err == nil && isReady(e.Conditions) {
				addresses = append(addresses, ip)
			}
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}

// isReady takes what is not said for ready, as the API asks its readers to.
func isReady(c discoveryv1.EndpointConditions) bool { return c.Ready == nil || *c.Ready }

func serves(c discoveryv1.EndpointConditions) bool {
	if c.Serving == nil {
		return isReady(c)
	}
	return *c.Serving
}

// first returns the address that counts: an endpoint of today has no other.
func first(addresses []string) string {
	if len(addresses) == 0 {
		return ""
	}
	return addresses[0]
}

// find returns the number of a slice's TCP port by the name that the Service's port has.
func find(ports []discoveryv1.EndpointPort, name string) (number uint16, ok bool) {
	for _, p := range ports {
		called := p.Name == nil && name == "" || p.Name != nil && *p.Name == name
		if called && p.Port != nil && (p.Protocol == nil || isTCP(*p.Protocol)) {
			return uint16(*p.Port), true
		}
	}
	return 0, false
}

// lookup returns the addresses of a name with its final dot, and whether there is such a name. As in the specification of
// DNS-based service discovery, a headless Service without a ready endpoint has no name.
func (t *table) lookup(host string) (addresses []netip.Addr, exists bool) {
	rest, ok := strings.CutSuffix(strings.ToLower(host), Domain+".")
	if !ok {
		return nil, false
	}
	labels := strings.Split(strings.TrimSuffix(rest, "."), ".")
	last := len(labels) - 1
	switch {
	case rest == "":
		return nil, true
	case labels[last] != "svc" || !strings.HasSuffix(rest, "."):
		return nil, false
	case last == 0:
		return nil, true
	case last == 1:
		return nil, t.namespaces[labels[0]]
	case last == 2:
		addresses = t.addresses[name{namespace: labels[1], service: labels[0]}]
	}
	return addresses, len(addresses) > 0
}
