//go:build race

package tokens

// raced says that the race detector is on, which makes everything some ten times slower.
const raced = true
