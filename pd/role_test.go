package pd_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestParseRole(t *testing.T) {
	const p, d, e = pd.RolePrefill, pd.RoleDecode, pd.RoleEncode
	cases := []struct {
		value string
		role  pd.Role
		ok    bool
		text  string
	}{
		{"prefill", p, true, "prefill"},
		{"decode", d, true, "decode"},
		{"encode", e, true, "encode"},
		{"prefill-decode", p | d, true, "prefill-decode"},
		{"encode-prefill", e | p, true, "encode-prefill"},
		{"encode-decode", e | d, true, "encode-decode"},
		{"encode-prefill-decode", e | p | d, true, "encode-prefill-decode"},
		{"both", p | d, true, "prefill-decode"},
		{"", d, true, "decode"},
		{"router", 0, false, "none"},
		{"Prefill", 0, false, "none"},
		{"prefill ", 0, false, "none"},
		{"decode-prefill", 0, false, "none"},
		{"none", 0, false, "none"},
	}
	for _, c := range cases {
		role, ok := pd.ParseRole(c.value)
		if role != c.role || ok != c.ok || role.String() != c.text {
			t.Errorf("%q: got %d (%s), %v", c.value, role, role, ok)
		}
	}
}

func TestRoleRoundTrip(t *testing.T) {
	for role := pd.Role(1); role <= pd.RolePrefill|pd.RoleDecode|pd.RoleEncode; role++ {
		back, ok := pd.ParseRole(role.String())
		if !ok || back != role {
			t.Errorf("%d prints as %s, which is %d, %v", role, role, back, ok)
		}
	}
}

func TestRoleHas(t *testing.T) {
	cases := []struct {
		name       string
		role, want pd.Role
		has        bool
	}{
		{"itself", pd.RolePrefill, pd.RolePrefill, true},
		{"one of two", pd.RolePrefill | pd.RoleDecode, pd.RoleDecode, true},
		{"both of two", pd.RolePrefill | pd.RoleDecode, pd.RolePrefill | pd.RoleDecode, true},
		{"two of one", pd.RoleDecode, pd.RolePrefill | pd.RoleDecode, false},
		{"another", pd.RoleEncode, pd.RoleDecode, false},
		{"a pod without a stage", 0, pd.RoleDecode, false},
		{"nothing wanted", pd.RoleDecode, 0, false},
	}
	for _, c := range cases {
		if got := c.role.Has(c.want); got != c.has {
			t.Errorf("%s: got %v", c.name, got)
		}
	}
}

func TestRoleValuesAreAllAccepted(t *testing.T) {
	values := strings.Split(pd.RoleValues(), ", ")
	if len(values) != 8 {
		t.Errorf("listed are %q", values)
	}
	for _, v := range values {
		if _, ok := pd.ParseRole(v); !ok || v == "" {
			t.Errorf("%q is listed and not accepted", v)
		}
	}
}
