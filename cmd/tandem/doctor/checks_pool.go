package doctor

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/tandem-serving/tandem/pd"
)

const roleLabel = pd.RoleLabel

func checkAnswers(ctx context.Context, f *fleet) finding {
	if len(f.targets) == 0 {
		return finding{verdict: fail, seen: "the pool has no endpoints", do: "start engines, and use a selector that matches their labels"}
	}
	seen := each(ctx, f.targets, f.how.Timeout, func(_ context.Context, t *target) finding {
		if t.alive != nil {
			return finding{verdict: fail, seen: fmt.Sprintf("%v: %v", t.addr, t.alive)}
		}
		return finding{verdict: ok}
	})
	if seen.verdict == ok {
		seen.seen = fmt.Sprintf("%d, and all answer", len(f.targets))
	}
	return seen
}

func checkRoles(ctx context.Context, f *fleet) finding {
	if len(f.targets) == 0 {
		return finding{}
	}
	seen := each(ctx, f.targets, f.how.Timeout, func(_ context.Context, t *target) finding {
		if _, known := pd.ParseRole(t.label); !known {
			return finding{verdict: fail, seen: fmt.Sprintf("%q is not a role", t.label), do: "set the label " + roleLabel + " to one of " + pd.RoleValues()}
		}
		return finding{verdict: ok}
	})
	if seen.verdict != ok {
		return seen
	}
	prefill, decode := f.counts()
	seen.seen = fmt.Sprintf("%d prefill, %d decode", prefill, decode)
	switch {
	case decode == 0:
		seen.verdict = fail
	case prefill == 0:
		seen.verdict = fail
		seen.seen += ": every prompt is prefilled by its decode engine"
	}
	return seen
}

// counts returns how many endpoints each stage has, whether they answer or not.
func (f *fleet) counts() (prefill, decode int) {
	for _, t := range f.targets {
		if t.role.Has(pd.RolePrefill) {
			prefill++
		}
		if t.role.Has(pd.RoleDecode) {
			decode++
		}
	}
	return prefill, decode
}

func checkAddresses(_ context.Context, f *fleet) finding {
	if len(f.targets) == 0 {
		return finding{}
	}
	holders := map[netip.AddrPort]string{}
	for _, t := range f.targets {
		if other, taken := holders[t.addr]; taken {
			return finding{verdict: fail, seen: fmt.Sprintf("%s and %s have the same address, %v", other, t.name, t.addr)}
		}
		holders[t.addr] = t.name
	}
	return finding{verdict: ok, seen: fmt.Sprintf("%d different addresses", len(holders))}
}
