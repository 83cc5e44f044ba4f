package services

import (
	"net/netip"
	"sync/atomic"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// ttl of all answers, in seconds, is the one that the specification of DNS-based service discovery asks for.
	ttl = 5
	// minUDP is what a client takes that does not say otherwise (RFC 1035, 4.2.1), and maxTCP what a length of 16 bits can say.
	minUDP, maxTCP = 512, 65535
	// maxUDP goes through every network in one packet; it is what resolvers agreed on in 2020.
	maxUDP = 1232
)

// resolver answers the questions of clients.
type resolver struct {
	table atomic.Pointer[table]
	turn  atomic.Uint64 // so that addresses come first in turn
}

// question is what a client wants to know.
type question struct {
	header dnsmessage.Header
	asked  dnsmessage.Question
	edns   bool
	size   int // of the longest answer over UDP that it takes
}

// answer to a query, of at most so many bytes as its transport can carry; 0 = UDP, as many as the client says. It is nil for
// what is no query.
func (r *resolver) answer(query []byte, limit int) []byte {
	q, code, ok := parse(query)
	if !ok {
		return nil
	}
	if limit == 0 {
		limit = q.size
	}
	if code != dnsmessage.RCodeSuccess {
		return q.message(code, nil, false)
	}
	addresses, exists := r.table.Load().lookup(q.asked.Name.String())
	if !exists {
		return q.message(dnsmessage.RCodeNameError, nil, false)
	}
	if q.asked.Type != dnsmessage.TypeA {
		addresses = nil
	}
	m := q.message(code, r.rotate(addresses), false)
	if len(m) > limit {
		m = q.message(code, nil, true)
	}
	return m
}

// rotate has another address come first each time, for clients that take the first.
func (r *resolver) rotate(addresses []netip.Addr) []netip.Addr {
	if len(addresses) < 2 {
		return addresses
	}
	n := int(r.turn.Add(1) % uint64(len(addresses)))
	return append(append(make([]netip.Addr, 0, len(addresses)), addresses[n:]...), addresses[:n]...)
}

// parse reads a query. What it is refused for is its code; ok is false for what cannot be answered at all.
func parse(query []byte) (q question, code dnsmessage.RCode, ok bool) {
	q.size = minUDP
	var p dnsmessage.Parser
	var err error
	if q.header, err = p.Start(query); err != nil || q.header.Response {
		return q, 0, false
	}
	if q.header.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, true
	}
	asked, err := p.AllQuestions()
	if err != nil || len(asked) != 1 {
		return q, dnsmessage.RCodeFormatError, true
	}
	q.asked = asked[0]
	if q.asked.Class != dnsmessage.ClassINET {
		return q, dnsmessage.RCodeRefused, true
	}
	return q.withSize(&p), dnsmessage.RCodeSuccess, true
}

// withSize looks for the OPT record, in which a client says what it takes.
func (q question) withSize(p *dnsmessage.Parser) question {
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q
	}
	for {
		h, err := p.AdditionalHeader()
		if err != nil {
			return q
		}
		if h.Type == dnsmessage.TypeOPT {
			q.edns, q.size = true, min(max(int(h.Class), minUDP), maxUDP)
			return q
		}
		if p.SkipAdditional() != nil {
			return q
		}
	}
}

// message returns an answer. Without addresses it names the authority, with how long to remember that there are none.
func (q question) message(code dnsmessage.RCode, addresses []netip.Addr, truncated bool) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: q.header.ID, Response: true, Authoritative: true, Truncated: truncated,
		RecursionDesired: q.header.RecursionDesired, RecursionAvailable: true, RCode: code, OpCode: q.header.OpCode}}
	if q.asked.Name.Length > 0 {
		m.Questions = []dnsmessage.Question{q.asked}
	}
	for _, a := range addresses {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.asked.Name, Class: dnsmessage.ClassINET, TTL: ttl},
			Body:   &dnsmessage.AResource{A: a.As4()}})
	}
	if len(addresses) == 0 && !truncated && (code == dnsmessage.RCodeSuccess || code == dnsmessage.RCodeNameError) {
		m.Authorities = []dnsmessage.Resource{authority()}
	}
	if q.edns {
		var h dnsmessage.ResourceHeader
		if h.SetEDNS0(maxUDP, dnsmessage.RCodeSuccess, false) == nil {
			m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
		}
	}
	packed, err := m.Pack()
	if err != nil {
		return nil // all names in it were parsed or are constants
	}
	return packed
}

func authority() dnsmessage.Resource {
	zone := dnsmessage.MustNewName(Domain + ".")
	return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: zone, Class: dnsmessage.ClassINET, TTL: ttl},
		Body: &dnsmessage.SOAResource{NS: dnsmessage.MustNewName("ns.dns." + Domain + "."),
			MBox: dnsmessage.MustNewName("hostmaster." + Domain + "."), Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, MinTTL: ttl}}
}
