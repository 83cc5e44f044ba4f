package sidecar

import "sync"

// bufferSizes are the sizes of pooled buffers (bytes). What waits, for a token or an answer, keeps the smallest that will
// do: thousands may wait at once.
var bufferSizes = [...]int{2 << 10, 8 << 10, 32 << 10, 64 << 10}

var bufferPools [len(bufferSizes)]sync.Pool

// takeBuffer gives the smallest buffer of at least n bytes, nil if none is as large.
func takeBuffer(n int) *[]byte {
	for i, size := range bufferSizes {
		if size < n {
			continue
		}
		if b, ok := bufferPools[i].Get().(*[]byte); ok {
			return b
		}
		b := make([]byte, size)
		return &b
	}
	return nil
}

// giveBuffer gives back what takeBuffer gave. Nobody may use it any more.
func giveBuffer(b *[]byte) {
	for i, size := range bufferSizes {
		if len(*b) == size {
			bufferPools[i].Put(b)
		}
	}
}
