package epp_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

func charged(e *epp.Endpoint) *epp.Decision {
	return &epp.Decision{Reservation: epp.ReserveAnyway(claim(e, 10))}
}

func TestLedgerHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, e := epp.NewLedger(patience, epp.SystemClock), pod("e")
		r := charged(e)
		l.Hold("a", r)
		time.Sleep(patience - 1)
		if _, ok := l.Take("b"); ok {
			t.Error("took what was not held")
		}
		got, ok := l.Take("a")
		if !ok || got != r {
			t.Fatalf("got %v, %v", got, ok)
		}
		if _, again := l.Take("a"); again {
			t.Error("took it twice")
		}
		time.Sleep(2 * patience)
		checkInFlight(t, e, 1, 10) // the taker's business now
		r.Reservation.End()
	})
}

func TestLedgerEndsUntakenReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, e := epp.NewLedger(patience, epp.SystemClock), pod("e")
		l.Hold("a", charged(e))
		time.Sleep(patience / 2)
		l.Hold("b", charged(e))
		time.Sleep(patience/2 - 1)
		checkInFlight(t, e, 2, 20)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		checkInFlight(t, e, 1, 10)
		if _, ok := l.Take("a"); ok || l.Len() != 1 {
			t.Errorf("held after its end, with %d", l.Len())
		}
		time.Sleep(patience / 2)
		synctest.Wait()
		checkInFlight(t, e, 0, 0)
	})
}

func TestLedgerHoldsAnIDOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, first, second := epp.NewLedger(patience, epp.SystemClock), pod("first"), pod("second")
		l.Hold("a", charged(first))
		time.Sleep(patience / 2)
		later := charged(second)
		l.Hold("a", later)
		checkInFlight(t, first, 0, 0)
		time.Sleep(patience - 1) // the first one's time is over, the second one's is not
		checkInFlight(t, second, 1, 10)
		if r, ok := l.Take("a"); !ok || r != later {
			t.Errorf("got %v, %v", r, ok)
		}
		later.Reservation.End()
	})
}

func TestLedgerClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, e := epp.NewLedger(patience, epp.SystemClock), pod("e")
		l.Hold("a", charged(e))
		l.Hold("b", charged(e))
		l.Close()
		checkInFlight(t, e, 0, 0)
		l.Hold("c", charged(e))
		checkInFlight(t, e, 0, 0)
		if _, ok := l.Take("a"); ok || l.Len() != 0 {
			t.Errorf("a closed ledger holds %d", l.Len())
		}
		l.Close()
	})
}
