//go:build !race

package tokens

const raced = false
