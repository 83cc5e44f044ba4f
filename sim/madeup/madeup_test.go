package madeup_test

import (
	"encoding/json"
	"testing"

	"github.com/tandem-serving/tandem/pd/dialect/dialecttest"
	"github.com/tandem-serving/tandem/sim/madeup"
)

func TestContract(t *testing.T) {
	cases := map[string]dialecttest.Case{
		"serial": {
			Dialect: madeup.Ticket{},
			Good:    func([]byte) []byte { return []byte(`{"ticket":"t1"}`) },
			Bad:     []string{`{"ticket":""}`, `{"ticket":1}`, `{"ticket":null}`},
			Own:     []string{"want_ticket", "ticket"},
		},
		"concurrent": {
			Dialect: madeup.Meeting{},
			Good: func(leg []byte) []byte {
				var l struct {
					Number json.RawMessage `json:"meet_number"`
				}
				if err := json.Unmarshal(leg, &l); err != nil {
					t.Fatal(err)
				}
				return []byte(`{"met":` + string(l.Number) + `}`)
			},
			Bad:     []string{`{"met":0}`, `{"met":null}`},
			Own:     []string{"meet_number", "meet_pod"},
			Minted:  []string{"meet_number"},
			Headers: []string{"x-meet-number", "X-MEET-POD"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { dialecttest.Run(t, c) })
	}
}
