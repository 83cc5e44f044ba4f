package nixl

import "fmt"

// Status is what a call of the C interface returns when it fails. The numbers are its own, not those of the C++ interface.
type Status int

// The statuses that libnixl_capi.so 0.10.1 to 1.5.1 returns.
const (
	// StatusInvalid: an argument is wrong.
	StatusInvalid Status = -1
	// StatusBackend: any failure of the backend, such as a lost peer, and every exception.
	StatusBackend Status = -2
	// StatusState: the agent or request is in a state that does not allow the call.
	StatusState Status = -3
	// StatusException: an exception; no tested version returns it.
	StatusException Status = -4
	// StatusNoTelemetry: nothing was measured.
	StatusNoTelemetry Status = -5
	// StatusNotFound: the agent, or the list, is not known. Versions before 1.5 return StatusBackend.
	StatusNotFound Status = -6
)

var meanings = map[Status]string{
	StatusInvalid:     "invalid argument",
	StatusBackend:     "the backend failed or lost its peer; NIXL_LOG_LEVEL=INFO makes the library say more on stderr",
	StatusState:       "wrong state",
	StatusException:   "exception",
	StatusNoTelemetry: "nothing was measured",
	StatusNotFound:    "not known",
}

func (s Status) Error() string {
	if m, ok := meanings[s]; ok {
		return fmt.Sprintf("status %d: %s", int(s), m)
	}
	return fmt.Sprintf("status %d, which this program does not know", int(s))
}

// CallError is a call of the library that failed. errors.Is finds its Status.
type CallError struct {
	Call   string // such as gen_notif
	Status Status
}

func (e *CallError) Error() string { return "nixl " + e.Call + ": " + e.Status.Error() }

// Unwrap returns the status.
func (e *CallError) Unwrap() error { return e.Status }
