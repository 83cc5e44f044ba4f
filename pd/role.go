package pd

import "strings"

// RoleLabel is the pod label with a model server's role. Its values are llm-d's.
const RoleLabel = "llm-d.ai/role"

// Role is the set of stages a pod may serve.
type Role uint8

// The stages. A pod that serves several has several bits.
const (
	RolePrefill Role = 1 << iota
	RoleDecode
	RoleEncode
)

// roles lists the values of RoleLabel in the order of llm-d's documentation. "both" is llm-d's deprecated form of
// prefill-decode, which Tandem reads and never writes.
var roles = []struct {
	value string
	role  Role
}{
	{"prefill", RolePrefill},
	{"decode", RoleDecode},
	{"encode", RoleEncode},
	{"prefill-decode", RolePrefill | RoleDecode},
	{"encode-prefill", RoleEncode | RolePrefill},
	{"encode-decode", RoleEncode | RoleDecode},
	{"encode-prefill-decode", RoleEncode | RolePrefill | RoleDecode},
	{"both", RolePrefill | RoleDecode},
}

// ParseRole parses the value of RoleLabel. A pod without the label (empty value) serves decode, as with llm-d's
// decode-filter. For an unknown value ok is false: such a pod serves no stage.
func ParseRole(value string) (role Role, ok bool) {
	if value == "" {
		return RoleDecode, true
	}
	for _, r := range roles {
		if r.value == value {
			return r.role, true
		}
	}
	return 0, false
}

// Has reports whether r serves every stage of want.
func (r Role) Has(want Role) bool { return want != 0 && r&want == want }

// String returns the label value of r, or "none" if r serves no stage.
func (r Role) String() string {
	for _, known := range roles {
		if known.role == r {
			return known.value
		}
	}
	return "none"
}

// RoleValues lists the accepted values of RoleLabel, for error messages.
func RoleValues() string {
	values := make([]string, len(roles))
	for i, r := range roles {
		values[i] = r.value
	}
	return strings.Join(values, ", ")
}
