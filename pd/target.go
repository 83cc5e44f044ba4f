package pd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Target is the address of one prefill candidate, or of one encoder.
type Target struct {
	Host string // IP literal without brackets, or a DNS name
	Port uint16
}

// String returns host:port, with IPv6 in brackets.
func (t Target) String() string { return net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))) }

// Addr returns the target's address if the host is an IP address.
func (t Target) Addr() (netip.AddrPort, bool) {
	ip, err := netip.ParseAddr(t.Host)
	return netip.AddrPortFrom(ip.Unmap(), t.Port), err == nil
}

// MaxTargets is the most candidates of one request. Three are usual; more would only delay the local fallback.
const MaxTargets = 16

// ParseTargets parses HeaderPrefill: one or more lines, each a comma-separated list of host:port, best first. It keeps
// duplicates: a picker that sends them wants two tries. The grammar is strict, because it decides which machine gets a
// request: no scheme, no user, no blanks inside, no zone, no port 0, IPv6 in brackets only.
func ParseTargets(values []string) ([]Target, error) { return parseTargets(HeaderPrefill, values) }

// ParseEncoders parses HeaderEncode, by the grammar of ParseTargets.
func ParseEncoders(values []string) ([]Target, error) { return parseTargets(HeaderEncode, values) }

// ParseSource parses HeaderSource, by the grammar of ParseTargets: one target.
func ParseSource(values []string) (Target, error) {
	targets, err := parseTargets(HeaderSource, values)
	switch {
	case err != nil:
		return Target{}, err
	case len(targets) != 1:
		return Target{}, fmt.Errorf("reading %s: must name one endpoint", HeaderSource)
	}
	return targets[0], nil
}

func parseTargets(header string, values []string) ([]Target, error) {
	var targets []Target
	for _, line := range values {
		for item := range strings.SplitSeq(line, ",") {
			t, err := parseTarget(strings.Trim(item, " \t"))
			if err != nil {
				return nil, fmt.Errorf("reading %s: %w", header, err)
			}
			if len(targets) == MaxTargets {
				return nil, fmt.Errorf("reading %s: more than %d candidates", header, MaxTargets)
			}
			targets = append(targets, t)
		}
	}
	return targets, nil
}

var errTarget = errors.New("every candidate must be host:port (IPv6 in brackets)")

func parseTarget(s string) (Target, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil || len(s) > 255+6 {
		return Target{}, errTarget
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Target{}, errors.New("every candidate needs a port from 1 to 65535")
	}
	bracketed := s[0] == '['
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil && ip.Zone() == "" && ip.Is6() == bracketed:
		return Target{Host: host, Port: uint16(n)}, nil
	case err == nil || bracketed || !isDNSName(host):
		return Target{}, errTarget
	}
	return Target{Host: host, Port: uint16(n)}, nil
}

// isDNSName checks for the letters of RFC 1123 host names and the underscore that some clusters use. It rejects digits and
// dots only: a mistyped IPv4 address.
func isDNSName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	letters := false
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			lower := c | 0x20
			switch {
			case lower >= 'a' && lower <= 'z' || c == '_':
				letters = true
			case c >= '0' && c <= '9' || c == '-':
			default:
				return false
			}
		}
	}
	return letters
}
