"""Keys and values kept between calls, with the index of every slot."""
