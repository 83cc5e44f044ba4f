package pd

import (
	"errors"
	"strings"
)

// Wish is what the client asked for with HeaderWish.
type Wish uint8

// The wishes. Auto is the zero value: no header, or "auto".
const (
	WishAuto          Wish = iota // the decider decides
	WishForce                     // remote prefill or an error, never local
	WishForceFallback             // remote prefill whatever the decider says, local if it fails
	WishBypass                    // local
)

var errWish = errors.New(HeaderWish + ` must be one of auto, force, force;fallback, bypass`)

// ParseWish reads the values of HeaderWish: one RFC 8941 item, a token that may carry the boolean parameter "fallback"
// after force. No value is WishAuto. Anything else is an error that lists what is allowed.
func ParseWish(values []string) (Wish, error) {
	if len(values) == 0 {
		return WishAuto, nil
	}
	if len(values) > 1 {
		return WishAuto, errWish
	}
	token, params, hasParams := strings.Cut(strings.Trim(values[0], " "), ";")
	switch {
	case token == "force" && hasParams:
		return parseForce(strings.TrimLeft(params, " "))
	case hasParams:
		return WishAuto, errWish
	case token == "auto":
		return WishAuto, nil
	case token == "force":
		return WishForce, nil
	case token == "bypass":
		return WishBypass, nil
	}
	return WishAuto, errWish
}

func parseForce(params string) (Wish, error) {
	switch params {
	case "fallback", "fallback=?1":
		return WishForceFallback, nil
	case "fallback=?0":
		return WishForce, nil
	}
	return WishAuto, errWish
}

// String prints the wish as ParseWish reads it.
func (w Wish) String() string {
	switch w {
	case WishForce:
		return "force"
	case WishForceFallback:
		return "force;fallback"
	case WishBypass:
		return "bypass"
	}
	return "auto"
}
