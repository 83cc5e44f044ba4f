package sglang_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// restWithin is the promised time after which nothing is left of a request, if all engines are alive.
const restWithin = 2 * time.Second

// lengths are prompts around the borders of pages, and one of several steps of the transfer.
var lengths = []int{3, 15, 16, 17, 100, 1000}

// testByHand proves the engines, and what this suite knows of their protocol, without anything of Tandem between.
func testByHand(t *testing.T, e *engines) {
	for _, api := range apis {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			for _, n := range lengths {
				t.Run(fmt.Sprint(api, n), func(t *testing.T) {
					a := newAsk(api, n, 8, stream)
					want := a.at(t, e.plain.Address())
					got, err := a.byHand(harness.Within(t), e.prefill, e.decode)
					if err != nil {
						t.Fatal(err)
					}
					mustEqual(t, a, got, want)
				})
			}
		})
	}
	e.mustRest(t, restWithin)
}
