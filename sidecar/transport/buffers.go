package transport

import "sync"

// bufferSizes are the sizes of pooled buffers (bytes). A goroutine that waits for a token or an answer takes the smallest
// sufficient one: thousands may wait at once.
var bufferSizes = [...]int{2 << 10, 8 << 10, 32 << 10, 64 << 10}

var bufferPools [len(bufferSizes)]sync.Pool

// TakeBuffer returns the smallest pooled buffer of at least n bytes, nil if there is no such size.
func TakeBuffer(n int) *[]byte {
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

// PutBuffer returns a buffer of TakeBuffer to its pool. The caller must not use it any more.
func PutBuffer(b *[]byte) {
	for i, size := range bufferSizes {
		if len(*b) == size {
			bufferPools[i].Put(b)
		}
	}
}
