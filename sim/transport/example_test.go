package transport_test

import (
	"context"
	"fmt"

	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
)

// A prefill agent exposes its KV cache; a decode agent reads a block of it and notifies the prefill agent. NewTCP instead of
// NewMem does the same between machines.
func Example() {
	if err := handOff(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output: prefill hears from decode: request-7:1
}

func handOff(ctx context.Context) error {
	network := transport.NewMemNetwork()
	prefill, err := transport.NewMem(network, "prefill")
	if err != nil {
		return err
	}
	defer prefill.Close()
	decode, err := transport.NewMem(network, "decode")
	if err != nil {
		return err
	}
	defer decode.Close()

	const blockSize = 16 << 10
	cache := make([]byte, 64*blockSize)
	region, err := prefill.Register(cache)
	if err != nil {
		return err
	}
	peer, err := decode.Load(ctx, prefill.Metadata())
	if err != nil {
		return err
	}
	block := make([]byte, blockSize)
	span := transfer.Span{Region: region.ID(), Offset: 3 * blockSize, Length: blockSize}
	if err := decode.Read(ctx, peer, []transfer.Span{span}, [][]byte{block}, []byte("request-7:1")); err != nil {
		return err
	}
	heard := <-prefill.Notifications()
	fmt.Printf("prefill hears from %s: %s\n", heard.From, heard.Message)
	return nil
}
