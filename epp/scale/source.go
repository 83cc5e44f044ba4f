package scale

import "fmt"

// Source tells the sizes that autoscalers are to give the roles. It is safe for concurrent use.
type Source interface {
	// Sizes returns the size of each role. The error says why sizes are not known now: an autoscaler must then keep what there is.
	Sizes() ([]Size, error)
	// Changed returns a channel that is closed when sizes may differ from those that Sizes returned before this call.
	Changed() <-chan struct{}
}

// Of returns the size of a role, or of a variant; "" matches any. The error says what to ask for instead.
func Of(sizes []Size, role, variant string) (Size, error) {
	var found []Size
	for _, one := range sizes {
		if (role == "" || role == one.Role) && (variant == "" || variant == one.Variant) {
			found = append(found, one)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Size{}, fmt.Errorf("role %q and variant %q fit %d sizes: name one of %s", role, variant, len(found), names(sizes))
	}
	return Size{}, fmt.Errorf("no size has role %q and variant %q: name one of %s", role, variant, names(sizes))
}

// names lists sizes for error messages.
func names(sizes []Size) (text string) {
	for i, one := range sizes {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("role %q (variant %q)", one.Role, one.Variant)
	}
	if text == "" {
		return "none: the configuration sizes no role"
	}
	return text
}
