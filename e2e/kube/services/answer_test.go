package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// query packs one for an address; but changes it.
func query(t *testing.T, host string, but ...func(*dnsmessage.Message)) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(host), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	for _, change := range but {
		change(&m)
	}
	packed, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func withEDNS(size int) func(*dnsmessage.Message) {
	return func(m *dnsmessage.Message) {
		var h dnsmessage.ResourceHeader
		if err := h.SetEDNS0(size, dnsmessage.RCodeSuccess, false); err == nil {
			m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
		}
	}
}

// resolverOf knows the Service web and, as the headless one many, so many endpoints.
func resolverOf(many int) *resolver {
	var endpoints []discoveryv1.Endpoint
	for i := range many {
		endpoints = append(endpoints, up(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}).String()))
	}
	r := new(resolver)
	r.table.Store(newTable([]*corev1.Service{service("web", "10.0.0.20"), service("many", "None")},
		[]*discoveryv1.EndpointSlice{slice("many", endpoints)}))
	return r
}

func TestAnswers(t *testing.T) {
	r := resolverOf(3)
	tests := []struct {
		name  string
		query []byte
		want  string // code, answers, authorities
	}{
		{"address", query(t, "web.ns.svc.cluster.local."), "RCodeSuccess 1 0"},
		{"in other letters", query(t, "Web.NS.svc.Cluster.local."), "RCodeSuccess 1 0"},
		{"headless", query(t, "many.ns.svc.cluster.local."), "RCodeSuccess 3 0"},
		{"no such name", query(t, "no.ns.svc.cluster.local."), "RCodeNameError 0 1"},
		{"outside", query(t, "example.com."), "RCodeNameError 0 1"},
		{"IPv6", query(t, "web.ns.svc.cluster.local.", func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeAAAA }), "RCodeSuccess 0 1"},
		{"between names", query(t, "ns.svc.cluster.local."), "RCodeSuccess 0 1"},
		{"other class", query(t, "web.ns.svc.cluster.local.", func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }), "RCodeRefused 0 0"},
		{"no question", query(t, "a.", func(m *dnsmessage.Message) { m.Questions = nil }), "RCodeFormatError 0 0"},
		{"two questions", query(t, "a.", func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }), "RCodeFormatError 0 0"},
		{"update", query(t, "a.", func(m *dnsmessage.Message) { m.OpCode = 5 }), "RCodeNotImplemented 0 0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var asked, m dnsmessage.Message
			if err := asked.Unpack(test.query); err != nil {
				t.Fatal(err)
			}
			if err := m.Unpack(r.answer(test.query, 0)); err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%v %d %d", m.RCode, len(m.Answers), len(m.Authorities))
			if strings.TrimPrefix(got, "dnsmessage.") != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if !m.Response || m.ID != 7 || !m.RecursionDesired || !m.Authoritative || m.Truncated {
				t.Errorf("header %+v", m.Header)
			}
			if len(m.Questions) > 0 && m.Questions[0] != asked.Questions[0] {
				t.Errorf("question %v, want it as it was asked: %v", m.Questions, asked.Questions)
			}
		})
	}
}

func TestNoQueryNoAnswer(t *testing.T) {
	r := resolverOf(0)
	answer := query(t, "web.ns.svc.cluster.local.", func(m *dnsmessage.Message) { m.Response = true })
	for _, q := range [][]byte{nil, []byte("GET / HTTP"), answer} {
		if a := r.answer(q, 0); a != nil {
			t.Errorf("%q is answered by %q", q, a)
		}
	}
}

// TestLongAnswers: over UDP an answer has what the client takes, or says that it is too long.
func TestLongAnswers(t *testing.T) {
	r := resolverOf(60) // 16 bytes each
	tests := []struct {
		name      string
		query     []byte
		limit     int
		truncated bool
	}{
		{"UDP of old", query(t, "many.ns.svc.cluster.local."), 0, true},
		{"EDNS", query(t, "many.ns.svc.cluster.local.", withEDNS(1232)), 0, false},
		{"EDNS with too small a size", query(t, "many.ns.svc.cluster.local.", withEDNS(12)), 0, true},
		{"TCP", query(t, "many.ns.svc.cluster.local."), maxTCP, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var m dnsmessage.Message
			if err := m.Unpack(r.answer(test.query, test.limit)); err != nil {
				t.Fatal(err)
			}
			if m.Truncated != test.truncated || (len(m.Answers) == 60) == test.truncated {
				t.Errorf("truncated: %t, %d answers", m.Truncated, len(m.Answers))
			}
		})
	}
	var m dnsmessage.Message
	if err := m.Unpack(resolverOf(200).answer(query(t, "many.ns.svc.cluster.local.", withEDNS(4096)), 0)); err != nil || !m.Truncated {
		t.Errorf("more than goes through a network in one packet: truncated: %t, %v", m.Truncated, err)
	}
}

func TestAddressesTakeTurns(t *testing.T) {
	r, first := resolverOf(3), map[[4]byte]int{}
	for range 9 {
		var m dnsmessage.Message
		if err := m.Unpack(r.answer(query(t, "many.ns.svc.cluster.local."), 0)); err != nil {
			t.Fatal(err)
		}
		first[m.Answers[0].Body.(*dnsmessage.AResource).A]++
	}
	if len(first) != 3 {
		t.Errorf("first were %v", first)
	}
}
