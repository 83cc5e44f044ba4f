package pd

import (
	"errors"
	"fmt"
)

// Pods are the pods that served a request, in HeaderPods:
//
//	decode=<host:port>[;prefill=<host:port>]
//
// It has addresses, so it goes to clients only where the operator wants that.
type Pods struct {
	Decode  string // where the gateway reached the decode pod
	Prefill string // "": the prompt was not computed on another pod
}

// ParsePods parses HeaderPods.
func ParsePods(value string) (Pods, error) {
	var p Pods
	// The first member has no head before it.
	head, err := splitParams(";"+value, func(name, v string) error {
		switch name {
		case "decode":
			p.Decode = v
		case "prefill":
			p.Prefill = v
		default:
			return errUnknownParam
		}
		return nil
	})
	if err == nil && (head != "" || p.Decode == "") {
		err = errors.New("must name a decode pod")
	}
	if err != nil {
		return Pods{}, fmt.Errorf("reading %s: %w", HeaderPods, err)
	}
	return p, nil
}

// String returns the pods in the form that ParsePods parses.
func (p Pods) String() string {
	if p.Prefill == "" {
		return "decode=" + p.Decode
	}
	return "decode=" + p.Decode + ";prefill=" + p.Prefill
}
