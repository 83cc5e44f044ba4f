package services

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// service makes one with the port http, 80; but changes it.
func service(name, ip string, but ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}}}
	for _, change := range but {
		change(s)
	}
	return s
}

// slice makes one of a Service with the port http, 8000; but changes it.
func slice(of string, endpoints []discoveryv1.Endpoint, but ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{discoveryv1.LabelServiceName: of}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8000)), Protocol: new(corev1.ProtocolTCP)}}}
	for _, change := range but {
		change(s)
	}
	return s
}

// endpoint makes one of the given conditions, each as true, false or not said.
func endpoint(ip string, ready, serving, terminating *bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{ip},
		Conditions: discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating}}
}

func up(ip string) discoveryv1.Endpoint { return endpoint(ip, new(true), new(true), new(false)) }

func TestFronts(t *testing.T) {
	no, yes := new(false), new(true)
	tests := []struct {
		name    string
		service *corev1.Service
		slices  []*discoveryv1.EndpointSlice
		want    []string // endpoints of 10.0.0.20:80
	}{
		{"no slice", service("a", "10.0.0.20"), nil, nil},
		{"ready ones, in order, once", service("a", "10.0.0.20"),
			[]*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{up("10.244.1.2"), up("10.244.1.1")}), slice("a", []discoveryv1.Endpoint{up("10.244.1.2")})},
			[]string{"10.244.1.1:8000", "10.244.1.2:8000"}},
		{"of another Service", service("a", "10.0.0.20"), []*discoveryv1.EndpointSlice{slice("b", []discoveryv1.Endpoint{up("10.244.1.1")})}, nil},
		{"of another namespace", service("a", "10.0.0.20", func(s *corev1.Service) { s.Namespace = "other" }),
			[]*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{up("10.244.1.1")})}, nil},
		{"conditions not said", service("a", "10.0.0.20"), []*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{endpoint("10.244.1.1", nil, nil, nil)})},
			[]string{"10.244.1.1:8000"}},
		{"not ready", service("a", "10.0.0.20"), []*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{endpoint("10.244.1.1", no, no, no), up("10.244.1.2")})},
			[]string{"10.244.1.2:8000"}},
		{"ending beside ready", service("a", "10.0.0.20"), []*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{endpoint("10.244.1.1", no, yes, yes), up("10.244.1.2")})},
			[]string{"10.244.1.2:8000"}},
		{"only ending", service("a", "10.0.0.20"),
			[]*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{endpoint("10.244.1.1", no, yes, yes), endpoint("10.244.1.2", no, no, yes), endpoint("10.244.1.3", no, no, no)})},
			[]string{"10.244.1.1:8000"}},
		{"other port name", service("a", "10.0.0.20", func(s *corev1.Service) { s.Spec.Ports[0].Name = "grpc" }),
			[]*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{up("10.244.1.1")})}, nil},
		{"ports without names", service("a", "10.0.0.20", func(s *corev1.Service) { s.Spec.Ports[0].Name, s.Spec.Ports[0].Protocol = "", "" }),
			[]*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{up("10.244.1.1")}, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name, s.Ports[0].Protocol = nil, nil })},
			[]string{"10.244.1.1:8000"}},
		{"UDP", service("a", "10.0.0.20", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }),
			[]*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{up("10.244.1.1")}, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Protocol = new(corev1.ProtocolUDP) })}, nil},
		{"IPv6", service("a", "10.0.0.20"),
			[]*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{up("fd00::1")}, func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 })}, nil},
		{"no address yet", service("a", ""), []*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{up("10.244.1.1")})}, nil},
		{"headless", service("a", "None"), []*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{up("10.244.1.1")})}, nil},
		{"endpoint without address", service("a", "10.0.0.20"), []*discoveryv1.EndpointSlice{slice("a", []discoveryv1.Endpoint{{}})}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fronts := newTable([]*corev1.Service{test.service}, test.slices).fronts
			var got []string
			for _, to := range fronts[netip.MustParseAddrPort("10.0.0.20:80")] {
				got = append(got, to.String())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("endpoints %v, want %v", got, test.want)
			}
			if test.want == nil && len(fronts) > 0 {
				t.Errorf("there are fronts: %v", slices.Collect(maps.Keys(fronts)))
			}
		})
	}
}

func TestLookup(t *testing.T) {
	table := newTable([]*corev1.Service{
		service("web", "10.0.0.20"), service("pods", "None"), service("empty", "None"), service("pending", ""),
		service("elsewhere", "", func(s *corev1.Service) { s.Spec.Type, s.Namespace = corev1.ServiceTypeExternalName, "other" }),
	}, []*discoveryv1.EndpointSlice{
		slice("pods", []discoveryv1.Endpoint{up("10.244.1.2"), up("10.244.1.1"), endpoint("10.244.1.3", new(false), new(true), new(true))}),
		slice("empty", []discoveryv1.Endpoint{endpoint("10.244.1.4", new(false), new(false), new(false))}),
	})
	tests := map[string]struct {
		want   []string
		exists bool
	}{
		"web.ns.svc.cluster.local.":     {[]string{"10.0.0.20"}, true},
		"WEB.ns.SVC.cluster.local.":     {[]string{"10.0.0.20"}, true},
		"pods.ns.svc.cluster.local.":    {[]string{"10.244.1.1", "10.244.1.2"}, true},
		"empty.ns.svc.cluster.local.":   {nil, false},
		"pending.ns.svc.cluster.local.": {nil, false},
		"none.ns.svc.cluster.local.":    {nil, false},
		"web.other.svc.cluster.local.":  {nil, false},
		"a.web.ns.svc.cluster.local.":   {nil, false},
		"cluster.local.":                {nil, true},
		"svc.cluster.local.":            {nil, true},
		"ns.svc.cluster.local.":         {nil, true},
		"other.svc.cluster.local.":      {nil, false},
		"web.ns.pod.cluster.local.":     {nil, false},
		"svccluster.local.":             {nil, false},
		"web.ns.svccluster.local.":      {nil, false},
		"web.ns.svc.":                   {nil, false},
		"example.com.":                  {nil, false},
		".":                             {nil, false},
	}
	for host, test := range tests {
		t.Run(host, func(t *testing.T) {
			addresses, exists := table.lookup(host)
			var got []string
			for _, a := range addresses {
				got = append(got, a.String())
			}
			if !slices.Equal(got, test.want) || exists != test.exists {
				t.Errorf("%v, exists: %t, want %v, %t", got, exists, test.want, test.exists)
			}
		})
	}
}
