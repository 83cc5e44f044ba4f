package batch

import "fmt"

// Amounts are what a tenant has, or may have at most: bytes of its files, batches that have not ended, and lines of these without a result.
// In a quota, 0 means no limit.
type Amounts struct{ Bytes, Batches, Lines int64 }

// QuotaError is the refusal of what would exceed the quota of a tenant.
type QuotaError struct {
	What               string // bytes of files, unfinished batches, or unfinished lines
	Used, Added, Quota int64
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("%d %s are more than the quota of %d, with the %d that there are", e.Added, e.What, e.Quota, e.Used)
}

// Allow returns a *QuotaError for the first amount that would exceed the quota. What is not added to is not checked.
func (quota Amounts) Allow(used, added Amounts) error {
	for _, e := range []QuotaError{
		{"bytes of files", used.Bytes, added.Bytes, quota.Bytes},
		{"unfinished batches", used.Batches, added.Batches, quota.Batches},
		{"unfinished lines", used.Lines, added.Lines, quota.Lines},
	} {
		// The quota may have been lowered below what is used.
		if e.Quota > 0 && e.Added > 0 && e.Added > e.Quota-e.Used {
			return &e
		}
	}
	return nil
}
