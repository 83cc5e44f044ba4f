package server

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
)

// Admin serves the simulator's own interface, for a listener of its own: POST and DELETE /sim/faults, GET /sim/state.
func Admin(faults *fault.List, state func() any) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sim/faults", func(w http.ResponseWriter, r *http.Request) { addFault(w, r, faults) })
	mux.HandleFunc("DELETE /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		faults.Clear()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /sim/state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if _, err := w.Write(pyjson.Encode(state())); err != nil {
			return // the caller has left
		}
	})
	return mux
}

// maxFaultBody bounds how much of a posted fault is read, in bytes.
const maxFaultBody = 64 << 10

func addFault(w http.ResponseWriter, r *http.Request, faults *fault.List) {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxFaultBody))
	d.DisallowUnknownFields()
	var f fault.Fault
	err := d.Decode(&f)
	if err == nil {
		err = faults.Add(f)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("reading the fault: %v", err), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
