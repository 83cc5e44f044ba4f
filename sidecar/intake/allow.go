package intake

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

// AllowRule is a range of addresses, and a port, to which prefill legs may go.
type AllowRule struct {
	Prefix netip.Prefix
	Port   uint16 // 0 = any
}

// UnmarshalText parses CIDR or CIDR:port; an IPv6 CIDR with a port is in brackets, as [fd00::/8]:8000. A single address is a
// range of one.
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

// MarshalText returns the rule in the form that UnmarshalText parses.
func (a AllowRule) MarshalText() ([]byte, error) {
	switch {
	case a.Port == 0:
		return []byte(a.Prefix.String()), nil
	case a.Prefix.Addr().Is6():
		return fmt.Appendf(nil, "[%s]:%d", a.Prefix, a.Port), nil
	}
	return fmt.Appendf(nil, "%s:%d", a.Prefix, a.Port), nil
}

// AllowList decides where prefill legs may go. Every client that reaches this port can send the header that names the target;
// without the list the sidecar would send requests to any address in it.
type AllowList struct {
	rules []AllowRule
	pods  func(netip.Addr) bool // nil: the rules alone decide
}

// privateRanges are the usual addresses of pods: RFC 1918, RFC 6598 (used by some pod networks) and RFC 4193.
var privateRanges = []AllowRule{
	{Prefix: netip.MustParsePrefix("10.0.0.0/8")},
	{Prefix: netip.MustParsePrefix("172.16.0.0/12")},
	{Prefix: netip.MustParsePrefix("192.168.0.0/16")},
	{Prefix: netip.MustParsePrefix("100.64.0.0/10")},
	{Prefix: netip.MustParsePrefix("fc00::/7")},
}

// reservedRanges are allowed only by a rule inside them: an operator who allows 0.0.0.0/0 does not mean this host, its
// neighbours on the link, or another spelling of an IPv4 address.
var reservedRanges = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), // kernels treat 0.0.0.0 as loopback
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"), // multicast and beyond, broadcast too
	netip.MustParsePrefix("::/96"),       // unspecified, loopback, and the deprecated IPv4 form of RFC 4291 §2.5.5.1
	netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), // IPv4 behind a translator: RFC 6052 and RFC 8215
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// metadataServices are addresses that answer with credentials. Only a rule for the single address allows one.
var metadataServices = []netip.Prefix{
	netip.MustParsePrefix("169.254.169.254/32"),     // most clouds
	netip.MustParsePrefix("169.254.170.2/32"),       // AWS: containers
	netip.MustParsePrefix("169.254.170.23/32"),      // AWS: EKS pod identity
	netip.MustParsePrefix("168.63.129.16/32"),       // Azure: the host's agent
	netip.MustParsePrefix("100.100.100.200/32"),     // Alibaba
	netip.MustParsePrefix("fd00:100::100:200/128"),  // Alibaba
	netip.MustParsePrefix("192.0.0.192/32"),         // Oracle, classic
	netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), // Oracle
	netip.MustParsePrefix("fd00:ec2::/32"),          // AWS: instance metadata, EKS pod identity
	netip.MustParsePrefix("fd20:ce::254/128"),       // Google
	netip.MustParsePrefix("fd00:42::42/128"),        // Scaleway
	netip.MustParsePrefix("fd00:a9fe:a9fe::1/128"),  // Akamai
}

// everywhere is all addresses but those that need a rule inside their range.
var everywhere = []AllowRule{{Prefix: netip.MustParsePrefix("0.0.0.0/0")}, {Prefix: netip.MustParsePrefix("::/0")}}

// loopbackRanges are the addresses of this machine itself.
var loopbackRanges = []AllowRule{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}, {Prefix: netip.MustParsePrefix("::1/128")}}

// NewAllowList makes a list of rules, or of the private ranges if there are none. If pods is not nil, an address must also be
// one that pods reports; without rules it need not be in a private range. With loopback, this machine's own addresses are
// allowed as well.
func NewAllowList(rules []AllowRule, loopback bool, pods func(netip.Addr) bool) AllowList {
	list := AllowList{rules: rules, pods: pods}
	switch {
	case len(rules) > 0:
	case pods != nil:
		list.rules = everywhere
	default:
		list.rules = privateRanges
	}
	if !loopback {
		return list
	}
	list.rules = slices.Concat(list.rules, loopbackRanges)
	if pods != nil {
		list.pods = func(addr netip.Addr) bool { return addr.IsLoopback() || pods(addr) }
	}
	return list
}

// allows reports whether a leg may go to an address.
func (l AllowList) allows(to netip.AddrPort) bool {
	addr := to.Addr().Unmap().WithZone("")
	return (l.pods == nil || l.pods(addr)) && slices.ContainsFunc(l.rules, func(r AllowRule) bool {
		return (r.Port == 0 || r.Port == to.Port()) && r.Prefix.Contains(addr) && r.covers(addr)
	})
}

// covers reports whether the rule is narrow enough for an address in its range.
func (a AllowRule) covers(addr netip.Addr) bool {
	metadata := slices.ContainsFunc(metadataServices, func(p netip.Prefix) bool { return p.Contains(addr) })
	return (!metadata || a.Prefix.IsSingleIP()) && !slices.ContainsFunc(reservedRanges, func(p netip.Prefix) bool {
		inside := p.Bits() <= a.Prefix.Bits() && p.Contains(a.Prefix.Addr())
		return p.Contains(addr) && !inside
	})
}

// Check refuses a target that is an address outside the list, and returns nil for others. Control checks a name when it is
// dialled, by the address that it then resolves to: an earlier check could see another address.
func (l AllowList) Check(t pd.Target) *pd.Refusal {
	addr, isAddr := t.Addr()
	if !isAddr || l.allows(addr) {
		return nil
	}
	hint := ""
	if addr.Addr().Unmap().IsLoopback() {
		hint = " (--prefill-allow-loopback allows addresses of this machine)"
	}
	return Denied(fmt.Errorf("%s: %w%s", addr, ErrDenied, hint))
}

// Denied returns the refusal of a request whose prefill target is not allowed. The cause, for the log, has the address.
func Denied(cause error) *pd.Refusal {
	refusal := pd.Refuse(pd.DeniedTarget, "A prefill target is not allowed here. The operator of this sidecar allows targets with --prefill-allow and --enable-ssrf-protection.")
	refusal.Cause = cause
	return refusal
}

// ErrDenied is the error of a connection to an address outside the list.
var ErrDenied = errors.New("address is outside --prefill-allow, or, with --enable-ssrf-protection, of no pod of --inference-pool")

// allowsHost reports whether the list has an address, at any port.
func (l AllowList) allowsHost(addr netip.Addr) bool {
	return slices.ContainsFunc(l.rules, func(r AllowRule) bool { return l.allows(netip.AddrPortFrom(addr, r.Port)) })
}

// ControlHost is Control for side channels. It ignores the port: the engine names its side channel's port, and no prefill leg
// goes there.
func (l AllowList) ControlHost(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !l.allowsHost(to.Addr()) {
		return ErrDenied
	}
	return nil
}

// Control is a net.Dialer.ControlContext that refuses connections to addresses outside the list.
func (l AllowList) Control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !l.allows(to) {
		return ErrDenied
	}
	return nil
}
