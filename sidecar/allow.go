package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/tandem-serving/tandem/pd"
)

// AllowRule is a range of addresses, and a port, that prefill legs may go to.
type AllowRule struct {
	Prefix netip.Prefix
	Port   uint16 // 0 = any
}

// UnmarshalText reads CIDR or CIDR:port; an IPv6 CIDR with a port is in brackets, as [fd00::/8]:8000. A single address is
// a range of one.
func (a *AllowRule) UnmarshalText(text []byte) error {
	s := string(text)
	cidr, port := s, ""
	switch {
	case strings.HasPrefix(s, "["):
		end := strings.Index(s, "]")
		if end < 0 || s[end+1:] != "" && s[end+1] != ':' {
			return fmt.Errorf("%q is not CIDR[:PORT]", s)
		}
		cidr, port = s[1:end], strings.TrimPrefix(s[end+1:], ":")
	case strings.Count(s, ":") == 1:
		cidr, port, _ = strings.Cut(s, ":")
	}
	rule := AllowRule{}
	if port != "" && port != "*" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("%q is not CIDR[:PORT]: the port must be 1 to 65535", s)
		}
		rule.Port = uint16(n)
	}
	prefix, err := parsePrefix(cidr)
	if err != nil {
		return fmt.Errorf("%q is not CIDR[:PORT], such as 10.0.0.0/8:8000", s)
	}
	rule.Prefix = prefix.Masked()
	*a = rule
	return nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

// MarshalText prints the rule as UnmarshalText reads it.
func (a AllowRule) MarshalText() ([]byte, error) {
	switch {
	case a.Port == 0:
		return []byte(a.Prefix.String()), nil
	case a.Prefix.Addr().Is6():
		return fmt.Appendf(nil, "[%s]:%d", a.Prefix, a.Port), nil
	}
	return fmt.Appendf(nil, "%s:%d", a.Prefix, a.Port), nil
}

// allowList decides where prefill legs may go. The header that names the target can come from anyone who reaches this
// port; without the list the sidecar would send requests wherever it says.
type allowList []AllowRule

// privateRanges are where pods live: RFC 1918, RFC 6598 (used by some pod networks) and RFC 4193. Loopback, link-local and
// the metadata services inside it are in none of them.
var privateRanges = allowList{
	{Prefix: netip.MustParsePrefix("10.0.0.0/8")},
	{Prefix: netip.MustParsePrefix("172.16.0.0/12")},
	{Prefix: netip.MustParsePrefix("192.168.0.0/16")},
	{Prefix: netip.MustParsePrefix("100.64.0.0/10")},
	{Prefix: netip.MustParsePrefix("fc00::/7")},
}

// metadataServices are addresses in or near the private ranges that answer with credentials. A rule reaches them only if it
// lists them one by one.
var metadataServices = []netip.Prefix{
	netip.MustParsePrefix("100.100.100.200/32"),     // Alibaba
	netip.MustParsePrefix("fd00:100::100:200/128"),  // Alibaba
	netip.MustParsePrefix("192.0.0.192/32"),         // Oracle, classic
	netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), // Oracle
	netip.MustParsePrefix("fd00:ec2::/32"),          // AWS: instance metadata, EKS pod identity
	netip.MustParsePrefix("fd20:ce::254/128"),       // Google
	netip.MustParsePrefix("fd00:42::42/128"),        // Scaleway
	netip.MustParsePrefix("fd00:a9fe:a9fe::1/128"),  // Akamai
}

func newAllowList(rules []AllowRule) allowList {
	if len(rules) == 0 {
		return privateRanges
	}
	return rules
}

func (l allowList) has(to netip.AddrPort) bool {
	addr := to.Addr().Unmap().WithZone("")
	for _, r := range l {
		if (r.Port == 0 || r.Port == to.Port()) && r.Prefix.Contains(addr) && !(isMetadata(addr) && !r.Prefix.IsSingleIP()) {
			return true
		}
	}
	return false
}

func isMetadata(addr netip.Addr) bool {
	return slices.ContainsFunc(metadataServices, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// check refuses a target that is an address outside the list. A name is checked when it is dialled, by what it resolves
// to then: a name that was checked earlier may resolve elsewhere later.
func (l allowList) check(t pd.Target) *pd.Refusal {
	addr, isAddr := t.Addr()
	if !isAddr || l.has(addr) {
		return nil
	}
	return pd.Refuse(pd.DeniedTarget, "A prefill target is not allowed here. The operator of this sidecar allows targets with --prefill-allow.")
}

var errDenied = errors.New("address is not in --prefill-allow")

// control is the hook of a dialer that refuses connections to addresses outside the list.
func (l allowList) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !l.has(to) {
		return errDenied
	}
	return nil
}
