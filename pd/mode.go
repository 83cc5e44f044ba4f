package pd

import (
	"errors"
	"strings"
)

// Mode is what the client asked for with HeaderMode.
type Mode uint8

// The modes. Auto is the zero value: no header, or "auto".
const (
	ModeAuto          Mode = iota // the decider decides
	ModeForce                     // remote prefill or an error, never local
	ModeForceFallback             // remote prefill whatever the decider chooses, local if it fails
	ModeBypass                    // local
)

var errMode = errors.New(HeaderMode + ` must be one of auto, force, force;fallback, bypass`)

// ParseMode parses the values of HeaderMode: one RFC 8941 item, a token that may have the boolean parameter "fallback" after
// force. No value is ModeAuto. Anything else is an error that lists the possible values.
func ParseMode(values []string) (Mode, error) {
	if len(values) == 0 {
		return ModeAuto, nil
	}
	if len(values) > 1 {
		return ModeAuto, errMode
	}
	token, params, hasParams := strings.Cut(strings.Trim(values[0], " "), ";")
	switch {
	case token == "force" && hasParams:
		return parseForce(strings.TrimLeft(params, " "))
	case hasParams:
		return ModeAuto, errMode
	case token == "auto":
		return ModeAuto, nil
	case token == "force":
		return ModeForce, nil
	case token == "bypass":
		return ModeBypass, nil
	}
	return ModeAuto, errMode
}

func parseForce(params string) (Mode, error) {
	switch params {
	case "fallback", "fallback=?1":
		return ModeForceFallback, nil
	case "fallback=?0":
		return ModeForce, nil
	}
	return ModeAuto, errMode
}

// String returns the mode in the form that ParseMode parses.
func (w Mode) String() string {
	switch w {
	case ModeForce:
		return "force"
	case ModeForceFallback:
		return "force;fallback"
	case ModeBypass:
		return "bypass"
	}
	return "auto"
}
