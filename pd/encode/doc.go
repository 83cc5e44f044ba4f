// Package encode speaks the protocol of vLLM's encoders: engines that turn the images, recordings and videos of a chat request into
// embeddings, so that the engine which computes the prompt need not.
//
// A buffered chat request enters, and later the encoders' answers. What leaves are the bodies of encoder legs, and the request as the
// other engines get it: with ec_transfer_params, where the connector moves encodings by them, and with references in place of images,
// where the operator wants that. All of them share the client's bytes.
//
// The package sends nothing and chooses no encoder. It does not read images: vLLM names an item by a hash of its content, which it
// tells in its answer. Requests of other APIs are not encoded, because encoders are asked by chat requests.
package encode
